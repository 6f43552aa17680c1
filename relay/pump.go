package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// pump owns some of a relay's lanes (lane modulo pumps) and repeats one step: claim, publish, settle. It takes nothing
// new once ctx has ended, and finishes what it has while work lives.
func (r *Relay) pump(ctx, work context.Context, number int) {
	s := r.session(fmt.Sprintf("pump %d", number))
	defer s.close()
	pause := newBackOff()
	for ctx.Err() == nil {
		grants := r.lanes.pick(number, r.cfg.Pumps, time.Now())
		if len(grants) == 0 {
			select {
			case <-ctx.Done():
			case <-r.kicks[number]:
			}
			continue
		}
		_, err := r.step(work, s, grants)
		r.postgres.report(err, s.opened)
		if err == nil {
			pause.Reset()
			continue
		}
		pauseFor(ctx, pause.NextBackOff())
	}
}

// step claims, publishes and settles once for lanes that were picked, and gives each of them back to the table. Its error
// is the database's: what Kafka does is retried within, or left to the next claim of the lane.
func (r *Relay) step(ctx context.Context, s *session, grants []grant) (published int, err error) {
	since := time.Now()
	c, lost, unknown, err := r.claim(ctx, s, grants)
	if err != nil {
		r.giveBack(grants, func(l *laneState) { l.doubt = l.doubt || unknown })
		return 0, fmt.Errorf("relay: claim: %w", err)
	}
	r.giveBack(lost, func(l *laneState) { l.doubt = true })
	discarded := 0
	for i := range c.lanes {
		l := &c.lanes[i]
		discarded += l.discarded
		r.lanes.update(l.lane, l.fence, func(s *laneState) { s.next, s.end = l.next, l.end })
	}
	if len(c.events) > 0 && r.cfg.Observer.Claimed != nil {
		r.cfg.Observer.Claimed(len(c.events), discarded, time.Since(since))
	}
	if discarded > 0 {
		r.log.Warn("journalled events are gone from the outbox: somebody deleted them; their numbers stay gaps", "events", discarded)
	}
	sending, end := r.startPublish(ctx, c.events)
	result := r.publish(sending, c)
	end(result.acked)
	err = r.finish(ctx, s, c, result)
	clear(c.events) // the payloads, not the room
	s.scratch = c.events
	return result.acked, err
}

// finish settles the lanes that are complete and gives all lanes back.
func (r *Relay) finish(ctx context.Context, s *session, c *claim, result published) error {
	var done []laneClaim
	settling := 0
	for i := range c.lanes {
		l := c.lanes[i]
		switch stop, left := result.stopped[l.lane], result.left[l.lane]; {
		case stop != nil:
			r.stop(l, stop)
		case left:
			r.giveBack([]grant{l.grant}, func(s *laneState) { s.fresh, s.ready, s.doubt = true, true, s.doubt || result.late })
		case l.first == 0:
			r.giveBack([]grant{l.grant}, func(s *laneState) { s.fresh, s.ready, s.stopped, s.acked = false, false, time.Time{}, nil })
		default:
			done = append(done, l)
			settling += l.count
		}
	}
	if len(done) == 0 {
		return nil
	}
	since := time.Now()
	settled, err := r.settleForSure(ctx, s, done)
	for _, l := range done {
		switch {
		case err != nil && !pgerr.CommitUnknown(err) && !errors.Is(err, errBarrier):
			r.giveBack([]grant{l.grant}, func(s *laneState) { s.fresh, s.ready = true, true })
		case err != nil || !settled[l.lane]:
			r.giveBack([]grant{l.grant}, func(s *laneState) { s.doubt = true })
		default:
			r.giveBack([]grant{l.grant}, func(s *laneState) { s.fresh, s.ready, s.acked = false, l.full, nil })
		}
	}
	if err != nil {
		return fmt.Errorf("relay: settle: %w", err)
	}
	r.moved.Store(time.Now().UnixNano())
	if r.cfg.Observer.Settled != nil {
		r.cfg.Observer.Settled(settling, time.Since(since))
	}
	return nil
}

// settleForSure repeats a settle that certainly did not happen (a lock timeout, a deadlock), as long as the lanes are
// ours: to claim them again instead would publish everything twice.
func (r *Relay) settleForSure(ctx context.Context, s *session, lanes []laneClaim) (settled map[int16]bool, err error) {
	pause := newBackOff()
	for {
		settled, err = r.settle(ctx, s, lanes)
		if err == nil || !pgerr.Retry(err) || ctx.Err() != nil {
			return settled, err
		}
		r.postgres.report(err, s.opened)
		pauseFor(ctx, pause.NextBackOff())
	}
}

// stop sets a lane aside whose event was refused. The lane's other events wait behind it, in order.
func (r *Relay) stop(l laneClaim, stop *stopped) {
	wait := r.cfg.RetryRefused
	if stop.scope == "topic" {
		wait = min(wait, retryTopic)
	}
	r.giveBack([]grant{l.grant}, func(s *laneState) {
		s.fresh, s.ready, s.acked, s.stopped = true, false, stop.acked, time.Now().Add(wait)
	})
	r.log.Error("an event was refused and stops its lane; nothing overtakes it, and it will be tried again",
		"lane", l.lane, "event", stop.event.ID, "topic", stop.event.Topic, "type", stop.event.Type, "scope", stop.scope, "retry_in", wait, "err", stop.err)
	if r.cfg.Observer.LaneStopped != nil {
		r.cfg.Observer.LaneStopped(l.lane, stop.err)
	}
}

// retryTopic is how soon a refusal of a whole topic is tried again: a missing grant or topic is often mended while
// somebody watches.
const retryTopic = 5 * time.Second

// giveBack ends a pump's work on lanes. Lanes in doubt need a heartbeat before anything else.
func (r *Relay) giveBack(grants []grant, change func(l *laneState)) {
	nudge := false
	for _, g := range grants {
		r.lanes.update(g.lane, g.fence, func(l *laneState) {
			l.busy = false
			change(l)
			nudge = nudge || l.doubt || l.leaving
		})
	}
	if nudge {
		r.nudge()
	}
}

// stopped is why a lane stops: its first refused event.
type stopped struct {
	event event.Event
	scope string
	err   error
	acked map[int64]struct{}
}
