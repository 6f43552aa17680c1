package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/failpoint"
)

// A lane that had more events than a claim takes is read in bulk the next time: one statement reads its rows, the relay counts their bytes and
// decides how many it takes, and a second pipeline of the same transaction journals those and commits. The lanes stay locked
// between the two. One round trip more for thousands of events saves Postgres the running sum and the copy of every row that a
// claim in one pipeline needs (docs/decisions/0021).
//
// The rows on their way are not bounded by bytes as in take, hence only small ones travel: a large one ends the lane's part of
// the claim, and the lane's next claim is a take.
const (
	// bulkFrom is how many events of a lane a claim must have had besides (Relay.bulkFrom, which tests lower).
	bulkFrom = 2
	// largePayload is from how many bytes of payload on an event is large. Postgres stores it beside the table from about 2,000 on.
	largePayload = 8000
)

// rowsFor is how many rows of a lane may be taken when they are of a size, and some more, for they may be smaller now. What is
// read and not taken has travelled for nothing.
func (k *claiming) rowsFor(size int) int {
	fit := k.bytes / max(size, 1)
	return min(k.perLane, fit+fit/4+1)
}

// readBulk reads rows that have no entry yet, as far as they are taken.
func (k *claiming) readBulk(rows pgx.Rows) error {
	r, last := k.rows, make(map[int16]int64, len(k.bulk.lanes))
	var large bool
	targets := append([]any{&r.e.Position.Lane, &r.e.Position.Seq, &large}, r.targets()...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		l, id := k.at[r.e.Position.Lane], r.e.Position.Seq
		if id <= last[l.lane] {
			return fmt.Errorf("relay: lane %d: row %d came after row %d", l.lane, id, last[l.lane])
		}
		last[l.lane] = id
		if l.cut = l.cut || large || l.count > 0 && r.bytes[l.lane]+len(r.e.Payload)+len(r.headers)+eventOverhead > k.bytes; l.cut {
			l.large = l.large || large
			return nil
		}
		r.e.Position.First, r.e.Position.Maybe = true, false
		r.it = item{id: id}
		return r.add(k.c, l)
	})
	return k.c.read(err)
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
		b.Queue(k.r.q.journal, lanes.lanes, lanes.fences, k.r.owner, lanes.firsts, ids, low, high).Exec(func(tag pgconn.CommandTag) error {
			if int(tag.RowsAffected()) != len(lanes.lanes) { // cannot be: they are locked
				return fmt.Errorf("relay: %d of %d entries were made", tag.RowsAffected(), len(lanes.lanes))
			}
			return nil
		})
	}
	b.Queue(sqlCommit)
	return s.pipeline(ctx, &b)
}
