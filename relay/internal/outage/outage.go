// Package outage tells when a system that the relay needs is away, and paces the attempts until it is back.
package outage

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Monitor says once that a system is away, and once that it is back, however many parts of the relay notice. An outage
// lasts until each part that failed has succeeded, or has nothing to do any more: what works for one need not work for
// another.
type Monitor struct {
	System string
	Log    *slog.Logger
	Notify func(system string, err error) // at each begin, and at each end with a nil error; may be nil

	mu      sync.Mutex
	failing map[string]bool // parts
	away    bool
	since   time.Time // when the last outage began
}

// Report takes the outcome of an attempt of a part that last heard of the system at a time; nil, too, when the part has
// nothing to do any more. An error that is only the end of our own context says nothing, and so does one of a part that
// has heard nothing since before the last outage: its connection died in that one, and it only notices now.
func (m *Monitor) Report(part string, err error, heard time.Time) {
	if errors.Is(err, context.Canceled) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		delete(m.failing, part)
		if m.away && len(m.failing) == 0 {
			m.away = false
			m.Log.Info(m.System+" is well again: nothing fails there now", "after",
				time.Since(m.since).Round(time.Millisecond))
			m.notify(nil)
		}
	case !m.away && heard.Before(m.since):
	default:
		if m.failing == nil {
			m.failing = map[string]bool{}
		}
		m.failing[part] = true
		if !m.away {
			m.away, m.since = true, time.Now()
			m.Log.Error(m.System+" does not answer as it should; trying again until it does", "at", part, "err", err)
			m.notify(err)
		}
	}
}

// Away reports whether an outage lasts.
func (m *Monitor) Away() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

func (m *Monitor) notify(err error) {
	if m.Notify != nil {
		m.Notify(m.System, err)
	}
}

// NewBackOff pauses between attempts that go on for ever: 50 ms at first, 5 s at most, with jitter.
func NewBackOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}
