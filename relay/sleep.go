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

// sleep waits until Wake is called, an event is due (zero: none is), or Config.Sleep is over. It reports whether ctx
// lives.
func (r *Relay) sleep(ctx context.Context, due time.Time) bool {
	wait := r.cfg.Sleep
	if !due.IsZero() {
		wait = min(wait, time.Until(due))
	}
	r.asleep.Store(true) // before it says so: from then on nobody asks the database on its behalf
	defer r.asleep.Store(false)
	r.cfg.Logger.Info("nothing has come for a while: the relay sleeps, with neither lanes nor connections", "for", wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-r.signals.Wakes:
	case <-timer.C:
	}
	r.cfg.Logger.Info("the relay is awake")
	return true
}

// Asleep reports whether the relay sleeps (Config.Sleep).
func (r *Relay) Asleep() bool { return r.asleep.Load() }
