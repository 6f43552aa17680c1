package relay

import (
	"context"
	"errors"
	"time"
)

// A sleeping relay is one that has stopped cleanly: its lanes are free, and its row in relay_member and its connections
// are gone. So no rule depends on sleep, and the other relays see one that has left. It wakes as another relay, with an
// identity and fences of its own.

// errIdle ends the awake state.
var errIdle = errors.New("relay: nothing to publish")

// maySleep reports whether an empty probe of that many lanes covered all work of this relay. It must not be waiting for
// Kafka or for another relay's lanes, and no event may be due soon.
func (r *Relay) maySleep(probed int) bool {
	due := !r.dueAt.IsZero() && time.Until(r.dueAt) < r.cfg.Lease
	return !due && r.beaten.Load() != 0 && !r.short.Load() && probed == len(r.lanes.All()) && r.health.Well()
}

// sleep waits until Wake is called, an event is due, or Config.Sleep is over. It reports whether ctx lives.
func (r *Relay) sleep(ctx context.Context) bool {
	wait := r.cfg.Sleep
	if !r.dueAt.IsZero() {
		wait = min(wait, time.Until(r.dueAt))
	}
	r.asleep.Store(true) // before it says so: from then on nobody asks the database on its behalf
	defer r.asleep.Store(false)
	r.log.Info("nothing has come for a while: the relay sleeps, with neither lanes nor connections", "for", wait)
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
