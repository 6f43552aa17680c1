package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// outage says once that something is away, and once that it is back, however many parts of the relay notice. It lasts
// until each part that failed has succeeded, or has nothing to do any more: what works for one need not work for
// another.
type outage struct {
	what   string
	log    *slog.Logger
	notify func(what string, err error)

	mu      sync.Mutex
	failing map[string]bool // parts
	away    bool
	since   time.Time // when the last outage began
}

// report takes the outcome of an attempt of a part that last heard of the system at a time; nil, too, when the part has
// nothing to do any more. An error that is only the end of our own context says nothing, and so does one of a part that
// has heard nothing since before the last outage: its connection died in that one, and it only notices now.
func (o *outage) report(part string, err error, heard time.Time) {
	if errors.Is(err, context.Canceled) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		delete(o.failing, part)
		if o.away && len(o.failing) == 0 {
			o.away = false
			o.log.Info(o.what+" is well again: nothing fails there now", "after", time.Since(o.since).Round(time.Millisecond))
			o.tell(nil)
		}
	case !o.away && heard.Before(o.since):
	default:
		if o.failing == nil {
			o.failing = map[string]bool{}
		}
		o.failing[part] = true
		if !o.away {
			o.away, o.since = true, time.Now()
			o.log.Error(o.what+" does not answer as it should; trying again until it does", "at", part, "err", err)
			o.tell(err)
		}
	}
}

func (o *outage) isAway() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.away
}

func (o *outage) tell(err error) {
	if o.notify != nil {
		o.notify(o.what, err)
	}
}

// newBackOff pauses between attempts that go on for ever: 50 ms at first, 5 s at most, with jitter.
func newBackOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}

// startError is what Run returns when its very first heartbeat meets something that waiting does not mend; nil when it
// may mend itself. The same errors later, a revoked grant say, are an outage.
func startError(err error) error {
	if errors.Is(err, errOtherSequence) {
		return err
	}
	switch pgerr.Code(err) {
	case "42P01", "3F000", "42703":
		return fmt.Errorf("relay: the outbox tables are missing or old: run `relay migrate`, or set Schema: %w", err)
	case "42501":
		return fmt.Errorf("relay: the role lacks a grant on the outbox tables: %w", err)
	case "28000", "28P01", "3D000":
		return fmt.Errorf("relay: Postgres refuses the connection, check user, password and database: %w", err)
	}
	return nil
}
