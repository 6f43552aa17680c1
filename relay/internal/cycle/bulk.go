package cycle

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Lanes that had more events than a claim takes are read in bulk the next time: one statement reads their rows up to an
// id, in the order in which the table stores them; the relay sorts them; and a second pipeline of the same transaction
// journals them and commits. The lanes stay locked in between. The rows of a lane up to an id are its next rows, so
// this is a claim like any other; its cost for Postgres is a third (docs/decisions/0021).
//
// A lane that is far above its floor is claimed by take: the floor fell, for example with a connection, or stands still
// because of a transaction without an id. Between them may be millions of dead rows, which a bitmap scan would visit
// each time, while take marks each that it meets as dead in the index. While a floor is still rising, a bulk read ends
// as far above it as take does.
//
// The range of ids follows from the density and the size of the last events, not from a count of bytes as in take.
// Therefore only small rows are read: a large one ends the lane's part of the claim, and the lane's next claim is a
// take.
const (
	// BulkFrom is how many events of a lane a full claim must have had for the lane to be read in bulk next
	// ([Cycle.BulkFrom]).
	BulkFrom = 2
	// largePayload is the number of bytes of payload and texts, or of headers, from which an event is large. Postgres
	// stores such values out of line, or compressed.
	largePayload = 2000
)

// window chooses up to which id lanes are read in bulk, so that about as many events are expected as a claim takes.
// Lanes that are past that id already are claimed by take: otherwise they would wait for the others.
func (k *claiming) window() {
	if len(k.many) == 0 {
		return
	}
	from, top, perID, size := int64(math.MaxInt64), int64(math.MaxInt64), 0.0, 0
	for _, l := range k.many {
		from, top = min(from, l.Pace.Last), min(top, l.Top)
		perID, size = perID+1/max(l.Pace.Gap, 1), max(size, l.Pace.Size)
	}
	events := len(k.many) * max(min(k.perLane, k.bytes/max(size, 1)), 1)
	k.highest, k.tooMany = min(from+max(int64(float64(events)/perID), 1), top), 2*events
	for _, l := range k.many {
		if l.Pace.Last >= k.highest {
			k.plain.add(l)
			continue
		}
		l.bulk = true
		k.bulk.add(l)
	}
}

// readBulk reads rows that have no entry yet.
func (k *claiming) readBulk(rows pgx.Rows) error {
	r, n := k.rows, 0
	targets := append([]any{&r.e.Position.Lane, &r.e.Position.Seq, (*pgtype.TID)(&r.it.At), &r.it.Large},
		r.targets()...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		n++
		r.e.Position.First, r.e.Position.MaybePublished = true, false
		r.it = delivery.Item{ID: r.e.Position.Seq, At: r.it.At, Large: r.it.Large || len(r.headers) > largePayload}
		return r.add(k.c, k.at[r.e.Position.Lane])
	})
	k.overflown = n == k.tooMany
	return err
}

// cut takes the events of each lane up to its first large one, and the same share of each lane if they exceed a claim's
// limits. It takes none if there were too many rows to read all: ids are denser than before, for example behind a hole.
// The lanes' next claim is then a take.
func (k *claiming) cut() {
	type run struct {
		l       *Part
		from, n int
	}
	var runs []run
	c, events, bytes := k.c, 0, 0
	for l, s := range c.runs(k.at) {
		r := run{l, s.from, s.len()}
		if l.bulk {
			r.n = 0
			for i := s.from; i < s.to && !l.large; i++ {
				if l.large = k.overflown || c.Items[i].Large; !l.large {
					r.n, bytes = r.n+1, bytes+len(c.Events[i].Payload)+textOf(&c.Events[i])+EventOverhead
				}
			}
			events += r.n
		}
		runs = append(runs, r)
	}
	lanes := len(k.bulk.Lanes)
	share := min(float64(k.perLane*lanes)/float64(max(events, 1)), float64(k.bytes*lanes)/float64(max(bytes, 1)), 1)
	kept := 0
	for _, r := range runs {
		if r.l.bulk {
			r.n = int(float64(r.n) * share)
			r.l.count = r.n
		}
		copy(c.Events[kept:], c.Events[r.from:r.from+r.n])
		copy(c.Items[kept:], c.Items[r.from:r.from+r.n])
		kept += r.n
	}
	clear(c.Events[kept:])
	clear(c.Items[kept:])
	c.Events, c.Items = c.Events[:kept], c.Items[:kept]
}

// measure records the figures that the next claim's window uses, and the floors for the settle.
func (k *claiming) measure() {
	for l, s := range k.c.runs(k.at) {
		first, last := k.c.Items[s.from].ID, k.c.Items[s.to-1].ID
		l.Seen = lanes.Pace{
			Last: last, Size: k.rows.bytes[l.Lane] / s.len(),
			Gap: float64(last-first) / float64(max(s.len()-1, 1)),
		}
		l.FloorAfter = min(l.FloorAfter, last)
	}
}

// journal writes the entries of the rows that were read in bulk, and commits. It runs on the connection that holds the
// locks, or fails.
func (k *claiming) journal(ctx context.Context, s *Session) error {
	var b pgx.Batch
	var entries sql.Fenced
	ids := make([]int64, 0, len(k.c.Events))
	var low, high []int32
	for l, part := range k.c.runs(k.at) {
		if !l.bulk {
			continue
		}
		entries.Add(l.Lane, l.Fence, l.First)
		low = append(low, int32(len(ids)+1))
		for _, it := range k.c.Items[part.from:part.to] {
			ids = append(ids, it.ID)
		}
		high = append(high, int32(len(ids)))
	}
	if len(entries.Lanes) > 0 {
		b.Queue(k.r.SQL(sql.Journal), entries.Lanes, entries.Fences, k.r.Owner, entries.Firsts, pg.IDs(ids), low,
			high).Exec(
			func(tag pgconn.CommandTag) error {
				if int(tag.RowsAffected()) != len(entries.Lanes) { // cannot happen: the lanes are locked
					return fmt.Errorf("relay: %d of %d entries were made", tag.RowsAffected(), len(entries.Lanes))
				}
				return nil
			})
	}
	b.Queue(sql.Commit)
	return s.Continue(ctx, &b)
}
