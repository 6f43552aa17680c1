package relay

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// eventOverhead is what an event costs in memory beside its payload, for the byte bound of a claim.
const eventOverhead = 512

// laneClaim is one lane's part of a claim: one journal entry.
type laneClaim struct {
	grant
	first     int64 // the entry's key; 0: the lane had nothing
	count     int   // events that came with it
	discarded int   // journalled events that are gone
	full      bool  // there may be more
}

// claim is what one claim transaction returned: the events of some lanes, numbered, journalled and durable.
type claim struct {
	epoch  string
	lanes  []laneClaim
	events []event.Event // lane by lane, each in sequence order
}

// claim runs the claim transaction for the lanes of grants (PROTOCOL P3.2, P3.3). Lanes that turned out not to be ours
// are in lost. An error for which unknown is true may have happened after the commit: the fence of every grant must be
// raised before anything else is done with it.
func (r *Relay) claim(ctx context.Context, s *session, grants []grant) (c *claim, lost []grant, unknown bool, err error) {
	c = &claim{lanes: make([]laneClaim, len(grants)), events: s.scratch[:0]}
	perLane := max(r.cfg.ClaimEvents/len(grants), 1)
	bytesPerLane := max(r.cfg.ClaimBytes/len(grants), 1)
	at := make(map[int16]*laneClaim, len(grants))
	var lanes, reserving, looking []int16
	var fences, nexts, floors, reservingFences, lookingFences []int64
	began, ids := r.clock(), ""
	for i, g := range grants {
		c.lanes[i] = laneClaim{grant: g}
		l := &c.lanes[i]
		at[g.lane] = l
		if g.end-g.next+1 < int64(perLane) || g.next == 0 {
			l.next = 0
			reserving, reservingFences = append(reserving, g.lane), append(reservingFences, g.fence)
		}
		if g.fresh {
			looking, lookingFences = append(looking, g.lane), append(lookingFences, g.fence)
		}
		lanes, fences, nexts = append(lanes, g.lane), append(fences, g.fence), append(nexts, l.next)
		floors, ids = append(floors, g.floor), g.ids
	}
	locked := make(map[int16]bool, len(grants))
	same, moved := true, make(map[int16]int64)
	rows := newRowReader()
	batch := transaction(r.cfg.Lease, toStandby, func(b *pgx.Batch) {
		b.Queue(r.q.lock, lanes, fences, r.owner).Query(func(rows pgx.Rows) error {
			return eachLane(rows, func(lane int16) { locked[lane] = true })
		})
		if len(reserving) > 0 {
			b.Queue(r.q.reserve, reserving, reservingFences, r.owner, int64(blockSize)).Query(func(rows pgx.Rows) error {
				var lane int16
				var end int64
				_, err := pgx.ForEachRow(rows, []any{&lane, &end}, func() error {
					at[lane].next, at[lane].end = end-blockSize+1, end
					return nil
				})
				return err
			})
		}
		b.Queue(r.q.meta).QueryRow(func(row pgx.Row) error { return row.Scan(&c.epoch, &same) })
		if len(looking) > 0 {
			b.Queue(r.q.open, looking, lookingFences, r.owner).Query(func(pr pgx.Rows) error { return rows.readOpen(pr, c, at) })
		}
		r.queueDue(b, grants, perLane, moved)
		b.Queue(r.q.take, lanes, fences, r.owner, nexts, perLane, bytesPerLane, eventOverhead, int64(blockSize), floors, ids).
			Query(func(pr pgx.Rows) error { return rows.readNew(pr, c, at) })
	})
	if err := s.send(ctx, batch); err != nil {
		return nil, nil, err == errBarrier || pgerr.CommitUnknown(err), err
	}
	r.movedDue(grants, perLane, moved)
	if len(locked) > 0 { // a lock writes
		r.durable(began)
	}
	c.sort()
	c.number(at)
	kept := c.lanes[:0]
	for i := range c.lanes {
		l := c.lanes[i]
		if !locked[l.lane] {
			lost = append(lost, l.grant)
			continue
		}
		l.full = l.fresh || l.count >= perLane || rows.bytes[l.lane] >= bytesPerLane/2
		kept = append(kept, l)
	}
	c.lanes = kept
	if !same {
		if c.epoch, err = r.raiseIncarnation(ctx, s); err != nil {
			return nil, nil, true, err
		}
	}
	for i := range c.events {
		c.events[i].Position.Epoch = c.epoch
	}
	return c, lost, false, nil
}

// sort restores lane and sequence order, which SQL does not promise without an ORDER BY that would cost a sort of
// the payloads.
func (c *claim) sort() {
	order := func(a, b event.Event) int {
		if a.Position.Lane != b.Position.Lane {
			return int(a.Position.Lane) - int(b.Position.Lane)
		}
		return int(min(max(a.Position.Seq-b.Position.Seq, -1), 1))
	}
	if !slices.IsSortedFunc(c.events, order) {
		slices.SortFunc(c.events, order)
	}
}

// number gives the new events the numbers that the journal has for them: from the lane's next one on, in the order of
// ids, which stand in the number's place until here. Events of an open entry have theirs.
func (c *claim) number(at map[int16]*laneClaim) {
	var l *laneClaim
	isNew := false
	for i := range c.events {
		p := &c.events[i].Position
		if l == nil || l.lane != p.Lane {
			l = at[p.Lane]
			if isNew = l.first == 0; isNew {
				l.first = l.next
			}
		}
		if isNew {
			p.Seq = l.next
			l.next++
		}
	}
}

// raiseIncarnation begins a new numbering: the database is another system or on another timeline than the numbers were
// made on, so numbers may have gone back.
func (r *Relay) raiseIncarnation(ctx context.Context, s *session) (epoch string, err error) {
	var same bool
	err = s.send(ctx, transaction(r.cfg.Lease, toStandby, func(b *pgx.Batch) {
		b.Queue(r.q.raiseIncarnation)
		b.Queue(r.q.meta).QueryRow(func(row pgx.Row) error { return row.Scan(&epoch, &same) })
	}))
	if err == nil {
		r.log.Warn("the outbox's database is another system or timeline: a new incarnation of its numbering has begun", "epoch", epoch)
	}
	return epoch, err
}

// settle deletes the journal entries of the lanes and the events that they name. It returns the lanes whose entries were
// there.
func (r *Relay) settle(ctx context.Context, s *session, lanes []laneClaim) (settled map[int16]bool, err error) {
	settled = make(map[int16]bool, len(lanes))
	var ids []int16
	var fences, firsts []int64
	for i := range lanes {
		ids, fences, firsts = append(ids, lanes[i].lane), append(fences, lanes[i].fence), append(firsts, lanes[i].first)
	}
	err = s.send(ctx, transaction(r.cfg.Lease, toNothing, func(b *pgx.Batch) {
		b.Queue(r.q.lock, ids, fences, r.owner)
		b.Queue(r.q.settle, ids, fences, r.owner, firsts).Query(func(rows pgx.Rows) error {
			return eachLane(rows, func(lane int16) { settled[lane] = true })
		})
	}))
	return settled, err
}

func eachLane(rows pgx.Rows, do func(lane int16)) error {
	var lane int16
	_, err := pgx.ForEachRow(rows, []any{&lane}, func() error { do(lane); return nil })
	return err
}
