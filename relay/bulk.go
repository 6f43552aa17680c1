package relay

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/failpoint"
)

// Lanes that had more events than a claim takes are read in bulk the next time: one statement reads their rows up to an id, in
// the order in which they lie in the table, the relay puts them in order, and a second pipeline of the same transaction journals
// them and commits. The lanes stay locked between the two. What a lane has up to an id is the next that it has, so this is a
// claim like any other; it costs Postgres a third (docs/decisions/0021).
//
// How much is read follows from the ids and the sizes that the last events had, and not from a count of bytes as in take, hence
// only small rows travel: a large one ends the lane's part of the claim, and the lane's next claim is a take.
const (
	// bulkFrom is how many events of a lane a claim must have had besides (Relay.bulkFrom, which tests lower).
	bulkFrom = 2
	// largePayload is from how many bytes of payload, or of headers, on an event is large. Postgres stores it beside the table from
	// there on.
	largePayload = 2000
)

// window chooses how far lanes are read in bulk: so far that as many events are expected as a claim takes. Lanes that are
// further than that already, which others would keep waiting, are claimed the ordinary way.
func (k *claiming) window() {
	if len(k.many) == 0 {
		return
	}
	from, perID, size := int64(math.MaxInt64), 0.0, 0
	for _, l := range k.many {
		from, perID, size = min(from, l.grant.last), perID+1/max(l.grant.gap, 1), max(size, l.grant.size)
	}
	events := len(k.many) * max(min(k.perLane, k.bytes/max(size, 1)), 1)
	k.highest, k.tooMany = from+max(int64(float64(events)/perID), 1), 2*events
	for _, l := range k.many {
		if l.grant.last >= k.highest {
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
	targets := append([]any{&r.e.Position.Lane, &r.e.Position.Seq, &r.it.at, &r.it.large}, r.targets()...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		n++
		r.e.Position.First, r.e.Position.Maybe = true, false
		r.it = item{id: r.e.Position.Seq, at: r.it.at, large: r.it.large || len(r.headers) > largePayload}
		return r.add(k.c, k.at[r.e.Position.Lane])
	})
	k.overflown = n == k.tooMany
	return k.c.read(err)
}

// cut takes the events of each lane up to its first large one, and of all lanes the same share when they are more, or larger,
// than a claim may have. It takes nothing when they were so many that not all were read: ids stand closer than they did, behind
// a hole for example. The lanes' next claim is a take then.
func (k *claiming) cut() {
	type run struct {
		l       *laneClaim
		from, n int
	}
	var runs []run
	c, events, bytes := k.c, 0, 0
	for i, to := 0, 0; i < len(c.events); i = to {
		r := run{l: k.at[c.events[i].Position.Lane], from: i}
		for to = i; to < len(c.events) && c.events[to].Position.Lane == r.l.lane; to++ {
			if r.l.large = r.l.large || r.l.bulk && (k.overflown || c.items[to].large); r.l.bulk && r.l.large {
				continue
			}
			if r.n++; r.l.bulk {
				events, bytes = events+1, bytes+len(c.events[to].Payload)+eventOverhead
			}
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
	for i, to := 0, 0; i < len(k.c.events); i = to { // lane by lane
		l := k.at[k.c.events[i].Position.Lane]
		for to = i + 1; to < len(k.c.events) && k.c.events[to].Position.Lane == l.lane; {
			to++
		}
		first, n := k.c.items[i].id, to-i
		l.last, l.size = k.c.items[to-1].id, k.rows.bytes[l.lane]/n
		l.gap = float64(l.last-first) / float64(max(n-1, 1))
		l.floorAfter = min(l.floorAfter, l.last)
	}
}

// journal makes the entries of what was read in bulk and commits. It does so on the connection that holds the locks, or not at all.
func (k *claiming) journal(ctx context.Context, s *session) error {
	var b pgx.Batch
	var lanes laneKeys
	ids := make([]int64, 0, len(k.c.events))
	var low, high []int32
	for i, to := 0, 0; i < len(k.c.events); i = to { // lane by lane
		l := k.at[k.c.events[i].Position.Lane]
		for to = i; to < len(k.c.events) && k.c.events[to].Position.Lane == l.lane; to++ {
			if l.bulk {
				ids = append(ids, k.c.items[to].id)
			}
		}
		if l.bulk {
			lanes.add(l)
			low, high = append(low, int32(len(ids)-(to-i)+1)), append(high, int32(len(ids)))
		}
	}
	if len(lanes.lanes) > 0 {
		if err := failpoint.Err(failpoint.RelayJournal); err != nil {
			s.close()
			return err
		}
		b.Queue(k.r.q.journal, lanes.lanes, lanes.fences, k.r.owner, lanes.firsts, idList(ids), low, high).Exec(func(tag pgconn.CommandTag) error {
			if int(tag.RowsAffected()) != len(lanes.lanes) { // cannot be: they are locked
				return fmt.Errorf("relay: %d of %d entries were made", tag.RowsAffected(), len(lanes.lanes))
			}
			return nil
		})
	}
	b.Queue(sqlCommit)
	return s.pipeline(ctx, &b)
}
