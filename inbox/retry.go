package inbox

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/effectonce/effectonce/internal/errtree"
)

// pauses returns a growing wait with jitter and without an end.
func pauses(first, longest time.Duration, factor float64) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(first),
		backoff.WithMaxInterval(max(first, longest)),
		backoff.WithMultiplier(factor), backoff.WithRandomizationFactor(0.2), backoff.WithMaxElapsedTime(0))
}

// outage logs once when the database goes away and once when it is back, however many goroutines wait for it, and each
// kind of error meanwhile.
type outage struct {
	log   *slog.Logger
	on    atomic.Bool
	mu    sync.Mutex
	since time.Time
	kinds errtree.Kinds
}

func (o *outage) down(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.on.Load() {
		if o.kinds.New(err) {
			o.log.Warn("inbox: the database still fails, with another error", "error", err)
		}
		return
	}
	o.since, o.kinds = time.Now(), errtree.Kinds{}
	o.kinds.New(err)
	o.on.Store(true)
	o.log.Warn("inbox: the database does not answer; waiting for it", "error", err)
}

func (o *outage) up() {
	if !o.on.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.on.Swap(false) {
		o.log.Info("inbox: the database answers again", "after", time.Since(o.since))
	}
}
