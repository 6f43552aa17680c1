// Package reviver tries the places that do not answer.
package reviver

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// forgetAfter is how long a place stays closed for which no lane of this relay holds events.
const forgetAfter = 10 * time.Second

// Reviver tries the closed places of a relay.
type Reviver struct {
	*start.Start
	Cycle *cycle.Cycle
}

// Run tries closed places, with growing pauses, and opens those that answer. It has a goroutine of its own: a try may
// last as long as the publisher's time-out.
func (r *Reviver) Run(ctx, work context.Context) {
	s := r.Session("reviver")
	defer s.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var said time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Health.Changed():
		case <-timer.C:
		}
		due, next := r.Health.Due(time.Now())
		if len(due) > 0 {
			err := r.Try(work, s, due)
			if pgerr.Answered(err) { // it may be the row of one lane; another try takes another lane
				if time.Since(said) > start.RefusalsEvery {
					said = time.Now()
					r.Log.Error("the database refuses the note that a held event is tried: its place stays closed",
						"error", err)
				}
				err = nil
			}
			r.Postgres.Report(s.Name, err, s.Heard())
			_, next = r.Health.Due(time.Time{})
		}
		wait := time.Hour
		if next.IsZero() {
			r.Postgres.Report(s.Name, nil, s.Heard()) // nothing is closed
		} else {
			wait = max(time.Until(next), time.Millisecond)
		}
		timer.Reset(wait)
	}
}

// Try sends the first held event of each place. It is the next event that its lane has to send there, so the order
// holds whatever the result is; when a claim drains it, it is a repetition under the same number.
func (r *Reviver) Try(ctx context.Context, s *pg.Session, places []delivery.Place) error {
	found, without := r.Lanes.FirstHeld(places)
	for _, at := range without {
		if r.Health.Age(at, time.Now()) > forgetAfter || (at.Partition == delivery.WholeTopic && r.Lanes.Holds(at)) {
			r.Cycle.Reopen(at) // the next sender finds out
		}
	}
	if len(found) == 0 {
		return nil
	}
	heads, c, err := r.Cycle.Heads(ctx, s, found)
	if err != nil || c.Epoch == "" {
		return err
	}
	for at := range found {
		if !slices.Contains(heads, at) && !slices.Contains(c.Paused, at.Topic) { // a claim is moving its events
			r.Cycle.Reopen(at)
		}
	}
	if len(c.Events) == 0 {
		return nil
	}
	grants := make([]lanes.Grant, 0, len(found))
	for _, g := range found {
		grants = append(grants, g)
	}
	held, release := r.Cycle.WhileHeld(ctx, grants, nil)
	defer release()
	if held.Err() != nil {
		return nil
	}
	verdicts := r.Cycle.Send(held, c.Events)
	var unsent untried
	for i, err := range verdicts {
		if i >= len(heads) {
			break
		}
		switch refused := delivery.Refused(err); {
		case err == nil, refused != nil && !refused.Topic:
			// It answers; the claim that drains parks refused events.
			r.Health.Acked(time.Now(), func() map[delivery.Place]bool {
				return map[delivery.Place]bool{heads[i]: true}
			})
			r.Cycle.Reopen(heads[i])
		case refused != nil && heads[i].Partition != delivery.WholeTopic:
			r.Cycle.CloseTopic(heads[i].Topic, err)
		case refused != nil && !c.Items[i].MaybePublished:
			g := found[heads[i]]
			unsent.Add(g.Lane, g.Fence, 0)
			unsent.ids = append(unsent.ids, c.Items[i].ID)
		}
	}
	return r.untry(ctx, s, &unsent)
}

// untried are held events that a try has not sent after all.
type untried struct {
	sql.Fenced
	ids []int64
}

// untry records that events were not sent. Otherwise they would count as possibly written, and another partition count
// could be accepted only with a new numbering.
func (r *Reviver) untry(ctx context.Context, s *pg.Session, u *untried) error {
	if len(u.ids) == 0 {
		return nil
	}
	return s.Send(ctx, pg.Transaction(r.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.SQL(sql.Lock), u.Lanes, u.Fences, r.Owner)
		b.Queue(r.SQL(sql.Untry), u.Lanes, u.Fences, r.Owner, u.ids)
	}))
}
