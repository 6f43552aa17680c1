package consumer

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// outage logs once that Kafka cannot be used and once that it can again, however many parts of the consumer notice.
type outage struct {
	log      *slog.Logger
	observer *Observer

	any   atomic.Bool // whether the lock is worth taking
	mu    sync.Mutex
	down  bool
	since time.Time
	err   error
	parts map[string]bool // what is failing now
}

// fail notes that a part failed, and why.
func (o *outage) fail(part string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.any.Store(true)
	if o.parts == nil {
		o.parts = map[string]bool{}
	}
	o.parts[part], o.err = true, err
	if o.down {
		return
	}
	o.down, o.since = true, time.Now()
	o.log.Warn("Kafka cannot be used now: trying again until it can", "at", part, "error", err)
	if o.observer.Outage != nil {
		o.observer.Outage(false, err)
	}
}

// works notes that a part works; the outage ends when none fails.
func (o *outage) works(part string) {
	if !o.any.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.parts, part)
	if !o.down || len(o.parts) > 0 {
		return
	}
	o.down = false
	o.any.Store(false)
	o.log.Info("Kafka can be used again", "after", time.Since(o.since).Round(time.Millisecond))
	if o.observer.Outage != nil {
		o.observer.Outage(true, nil)
	}
}

// forget drops a part that no longer runs, without ending the outage.
func (o *outage) forget(part string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.parts, part)
}

// state returns whether there is an outage, since when, and its last error.
func (o *outage) state() (down bool, since time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.down, o.since, o.err
}
