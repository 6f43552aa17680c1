package relay

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// forgetAfter is how long a place stays closed for which no lane of this relay holds events.
const forgetAfter = 10 * time.Second

// revive tries closed places, with growing pauses, and opens those that answer. It has a goroutine of its own: a try
// may last as long as the publisher's time-out.
func (r *Relay) revive(ctx, work context.Context) {
	s := r.session("reviver")
	defer s.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var said time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.health.Changed():
		case <-timer.C:
		}
		due, next := r.health.Due(time.Now())
		if len(due) > 0 {
			err := r.tryClosed(work, s, due)
			if pgerr.Answered(err) { // it may be the row of one lane; another try takes another lane
				if time.Since(said) > refusalsEvery {
					said = time.Now()
					r.log.Error("the database refuses the note that a held event is tried: its place stays closed",
						"error", err)
				}
				err = nil
			}
			r.postgres.Report(s.Name, err, s.Heard())
			_, next = r.health.Due(time.Time{})
		}
		wait := time.Hour
		if next.IsZero() {
			r.postgres.Report(s.Name, nil, s.Heard()) // nothing is closed
		} else {
			wait = max(time.Until(next), time.Millisecond)
		}
		timer.Reset(wait)
	}
}

// tryClosed sends the first held event of each place. It is the next event that its lane has to send there, so the
// order holds whatever the result is; when a claim drains it, it is a repetition under the same number.
func (r *Relay) tryClosed(ctx context.Context, s *session, places []delivery.Place) error {
	found, without := r.lanes.FirstHeld(places)
	for _, at := range without {
		if r.health.Age(at, time.Now()) > forgetAfter || (at.Partition == delivery.WholeTopic && r.lanes.Holds(at)) {
			r.reopen(at) // the next sender finds out
		}
	}
	if len(found) == 0 {
		return nil
	}
	heads, c, err := r.heads(ctx, s, found)
	if err != nil || c.epoch == "" {
		return err
	}
	for at := range found {
		if !slices.Contains(heads, at) && !slices.Contains(c.paused, at.Topic) { // a claim is moving its events
			r.reopen(at)
		}
	}
	if len(c.events) == 0 {
		return nil
	}
	grants := make([]lanes.Grant, 0, len(found))
	for _, g := range found {
		grants = append(grants, g)
	}
	held, release := r.whileHeld(ctx, grants, nil)
	defer release()
	if held.Err() != nil {
		return nil
	}
	verdicts := r.send(held, c.events)
	var unsent untried
	for i, err := range verdicts {
		if i >= len(heads) {
			break
		}
		switch refused := delivery.Refused(err); {
		case err == nil, refused != nil && !refused.Topic:
			// It answers; the claim that drains parks refused events.
			r.health.Acked(time.Now(), func() map[delivery.Place]bool {
				return map[delivery.Place]bool{heads[i]: true}
			})
			r.reopen(heads[i])
		case refused != nil && heads[i].Partition != delivery.WholeTopic:
			r.closeTopic(heads[i].Topic, err)
		case refused != nil && !c.items[i].Sent:
			unsent.add(found[heads[i]], c.items[i].ID)
		}
	}
	return r.untry(ctx, s, &unsent)
}

// untried are held events that a try has not sent after all.
type untried struct {
	lanes       []int16
	fences, ids []int64
}

func (u *untried) add(g lanes.Grant, id int64) {
	u.lanes, u.fences, u.ids = append(u.lanes, g.Lane), append(u.fences, g.Fence), append(u.ids, id)
}

// untry records that events were not sent. Otherwise they would count as possibly written, and another partition count
// could be accepted only with a new numbering.
func (r *Relay) untry(ctx context.Context, s *session, u *untried) error {
	if len(u.ids) == 0 {
		return nil
	}
	return s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Lock), u.lanes, u.fences, r.owner)
		b.Queue(r.sql(sql.Untry), u.lanes, u.fences, r.owner, u.ids)
	}))
}

// heads reads the first held event of each place, after recording that it is sent, and with the barrier of a claim.
func (r *Relay) heads(ctx context.Context, s *session, found map[delivery.Place]lanes.Grant) (heads []delivery.Place,
	c *claim, err error,
) {
	var set laneKeys
	var topics []string
	var partitions []int32
	c, perLane := &claim{}, map[int16]*laneClaim{}
	for at, g := range found {
		set.lanes, set.fences = append(set.lanes, g.Lane), append(set.fences, g.Fence)
		topics, partitions = append(topics, at.Topic), append(partitions, at.Partition)
		perLane[g.Lane] = &laneClaim{}
	}
	rows, same := newRowReader(r.cfg.OnFailure), true
	err = s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Standby, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Lock), set.lanes, set.fences, r.owner)
		b.Queue(r.sql(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&c.epoch, &same) })
		b.Queue(r.sql(sql.Try), set.lanes, set.fences, r.owner, topics, partitions).Query(func(pr pgx.Rows) error {
			return rows.readHeld(pr, c, perLane)
		})
		b.Queue(r.sql(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&c.paused) })
	}))
	if err == nil && !same {
		c.epoch, err = r.raiseIncarnation(ctx, s.Session)
	}
	if err != nil {
		return nil, &claim{}, err
	}
	for i := range c.events {
		c.events[i].Position.Epoch = c.epoch
		heads = append(heads, delivery.At(c.events[i].Topic, c.items[i].Partition))
	}
	return heads, c, nil
}
