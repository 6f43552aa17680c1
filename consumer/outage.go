package consumer

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/internal/errtree"
)

// outage logs the start and the end of an outage of Kafka once each, even if several parts of the consumer notice it,
// and each kind of error meanwhile.
type outage struct {
	log      *slog.Logger
	observer *Observer

	any   atomic.Bool // whether a part may be failing: works skips the lock otherwise
	mu    sync.Mutex
	down  bool
	since time.Time
	err   error
	parts map[string]bool // the parts that fail now
	kinds errtree.Kinds   // of errors of this outage
}

// fail records the failure of a part.
func (o *outage) fail(part string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.any.Store(true)
	if o.parts == nil {
		o.parts = map[string]bool{}
	}
	o.parts[part], o.err = true, err
	if o.down {
		if o.kinds.New(err) {
			o.log.Warn("Kafka still fails, with another error", "at", part, "error", err)
		}
		return
	}
	o.down, o.since, o.kinds = true, time.Now(), errtree.Kinds{}
	o.kinds.New(err)
	o.log.Warn("Kafka cannot be used now: trying again until it can", "at", part, "error", err)
	if o.observer.Outage != nil {
		o.observer.Outage(OutageInfo{Err: err})
	}
}

// works records that a part works. The outage ends when no part fails.
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
		o.observer.Outage(OutageInfo{})
	}
}

// forget drops a part that no longer runs. It does not end the outage.
func (o *outage) forget(part string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.parts, part)
}

// state reports whether there is an outage, when the last one began, and its last error.
func (o *outage) state() (down bool, since time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.down, o.since, o.err
}
