package relay

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
// id, in the order in which they lie in the table, the relay puts them in order, and a second pipeline of the same
// transaction journals them and commits. The lanes stay locked between the two. What a lane has up to an id is the next
// that it has, so this is a claim like any other; it costs Postgres a third (docs/decisions/0021).
//
// Floors that fell, with a connection for example, must be found again first: below them may be millions of dead rows,
// which a scan by a bitmap would visit each time, while take leaves a mark in the index at each that it meets.
//
// How much is read follows from the ids and the sizes that the last events had, and not from a count of bytes as in
// take, hence only small rows travel: a large one ends the lane's part of the claim, and the lane's next claim is a
// take.
const (
	// bulkFrom is how many events of a lane a claim must have had besides (Relay.bulkFrom, which tests lower).
	bulkFrom = 2
	// largePayload is from how many bytes of payload and texts, or of headers, on an event is large. Postgres stores it
	// beside the table, or compressed, from there on.
	largePayload = 2000
)

// window chooses how far lanes are read in bulk: so far that as many events are expected as a claim takes. Lanes that
// are further than that already, which others would keep waiting, are claimed the ordinary way.
func (k *claiming) window() {
	if len(k.many) == 0 {
		return
	}
	from, perID, size := int64(math.MaxInt64), 0.0, 0
	for _, l := range k.many {
		from, perID, size = min(from, l.Pace.Last), perID+1/max(l.Pace.Gap, 1), max(size, l.Pace.Size)
	}
	events := len(k.many) * max(min(k.perLane, k.bytes/max(size, 1)), 1)
	k.highest, k.tooMany = from+max(int64(float64(events)/perID), 1), 2*events
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
		r.e.Position.First, r.e.Position.Maybe = true, false
		r.it = delivery.Item{ID: r.e.Position.Seq, At: r.it.At, Large: r.it.Large || len(r.headers) > largePayload}
		return r.add(k.c, k.at[r.e.Position.Lane])
	})
	k.overflown = n == k.tooMany
	return err
}

// cut takes the events of each lane up to its first large one, and of all lanes the same share when they are more, or
// larger, than a claim may have. It takes nothing when they were so many that not all were read: ids stand closer than
// they did, behind a hole for example. The lanes' next claim is a take then.
func (k *claiming) cut() {
	type run struct {
		l       *laneClaim
		from, n int
	}
	var runs []run
	c, events, bytes := k.c, 0, 0
	for l, s := range c.runs(k.at) {
		r := run{l, s.from, s.len()}
		if l.bulk {
			r.n = 0
			for i := s.from; i < s.to && !l.large; i++ {
				if l.large = k.overflown || c.items[i].Large; !l.large {
					r.n, bytes = r.n+1, bytes+len(c.events[i].Payload)+textOf(&c.events[i])+eventOverhead
				}
			}
			events += r.n
		}
		runs = append(runs, r)
	}
	lanes := len(k.bulk.lanes)
	share := min(float64(k.perLane*lanes)/float64(max(events, 1)), float64(k.bytes*lanes)/float64(max(bytes, 1)), 1)
	kept := 0
	for _, r := range runs {
		if r.l.bulk {
			r.n = int(float64(r.n) * share)
			r.l.count = r.n
		}
		copy(c.events[kept:], c.events[r.from:r.from+r.n])
		copy(c.items[kept:], c.items[r.from:r.from+r.n])
		kept += r.n
	}
	clear(c.events[kept:])
	clear(c.items[kept:])
	c.events, c.items = c.events[:kept], c.items[:kept]
}

// measure notes what the next claim's window follows from, and the floors that the settle leaves.
func (k *claiming) measure() {
	for l, s := range k.c.runs(k.at) {
		first, last := k.c.items[s.from].ID, k.c.items[s.to-1].ID
		l.seen = lanes.Pace{
			Last: last, Size: k.rows.bytes[l.Lane] / s.len(),
			Gap: float64(last-first) / float64(max(s.len()-1, 1)),
		}
		l.floorAfter = min(l.floorAfter, last)
	}
}

// journal makes the entries of what was read in bulk and commits. It does so on the connection that holds the locks, or
// not at all.
func (k *claiming) journal(ctx context.Context, s *session) error {
	var b pgx.Batch
	var lanes laneKeys
	ids := make([]int64, 0, len(k.c.events))
	var low, high []int32
	for l, part := range k.c.runs(k.at) {
		if !l.bulk {
			continue
		}
		lanes.add(l)
		low = append(low, int32(len(ids)+1))
		for _, it := range k.c.items[part.from:part.to] {
			ids = append(ids, it.ID)
		}
		high = append(high, int32(len(ids)))
	}
	if len(lanes.lanes) > 0 {
		b.Queue(k.r.sql(sql.Journal), lanes.lanes, lanes.fences, k.r.owner, lanes.firsts, pg.IDs(ids), low, high).Exec(
			func(tag pgconn.CommandTag) error {
				if int(tag.RowsAffected()) != len(lanes.lanes) { // cannot be: they are locked
					return fmt.Errorf("relay: %d of %d entries were made", tag.RowsAffected(), len(lanes.lanes))
				}
				return nil
			})
	}
	b.Queue(sql.Commit)
	return s.Continue(ctx, &b)
}
