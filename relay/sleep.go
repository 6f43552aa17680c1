package relay

import (
	"context"
	"errors"
	"time"
)

// A relay that sleeps is one that has stopped in order: its lanes are free, its row among the members is gone, and so
// are its connections. So no rule needs to know of sleep, and the other relays see one that has left. It wakes as
// another one, under an identity and fences of its own.

// errIdle ends a time of being awake.
var errIdle = errors.New("relay: nothing to publish")

// maySleep reports whether a look at so many lanes, which has found nothing, was a look at all that this relay may
// have to do. Nobody is waited for, neither Kafka nor a relay that has gone, and nothing is due soon.
func (r *Relay) maySleep(looked int) bool {
	due := !r.dueAt.IsZero() && time.Until(r.dueAt) < r.cfg.Lease
	return !due && r.beaten.Load() != 0 && !r.short.Load() && looked == len(r.lanes.All()) && r.health.Well()
}

// sleep waits until somebody calls Wake, something is due, or Config.Sleep is over. It reports whether ctx lives.
func (r *Relay) sleep(ctx context.Context) bool {
	wait := r.cfg.Sleep
	if !r.dueAt.IsZero() {
		wait = min(wait, time.Until(r.dueAt))
	}
	r.log.Info("nothing has come for a while: the relay sleeps, with neither lanes nor connections", "for", wait)
	r.asleep.Store(true)
	defer r.asleep.Store(false)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-r.woken:
	case <-timer.C:
	}
	r.log.Info("the relay is awake")
	return true
}

// Asleep reports whether the relay sleeps (Config.Sleep).
func (r *Relay) Asleep() bool { return r.asleep.Load() }
