// Package outage tracks outages of the systems that the relay needs, and paces the attempts until they end.
package outage

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/effectonce/effectonce/internal/errtree"
	"github.com/effectonce/effectonce/internal/pgsession"
)

// Monitor reports the begin and the end of an outage once each, however many parts of the relay notice, and logs each
// kind of error that it has. An outage lasts until each part that failed has succeeded, or has no more work: success of
// one part proves nothing for another.
type Monitor struct {
	System string
	Log    *slog.Logger
	Notify func(system string, err error) // at each begin, and at each end with a nil error; may be nil

	mu      sync.Mutex
	failing map[string]bool // parts; false: one that waits for an answer to others, and tries nothing itself
	away    bool
	since   time.Time       // when the last outage began
	ended   time.Time       // when the last outage but this one ended
	last    error           // of what failed last
	kinds   errtree.Kinds   // of errors of this outage
	late    map[string]bool // parts of which an error was ignored since then
}

// Report records the outcome of an attempt of a part, which last heard of the system at a time; err is nil, too, if the
// part has no more work. The end of the relay's own context is ignored, and so is the first error of a part that has
// heard nothing since the end of the last outage: its connection died in that one, or it noticed that one late.
func (m *Monitor) Report(part string, err error, heard time.Time) {
	if errors.Is(err, context.Canceled) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		delete(m.failing, part)
		m.endIfWell()
	case !m.away && heard.Before(m.ended) && !m.late[part]:
		m.late[part] = true
	default:
		if m.failing == nil {
			m.failing = map[string]bool{}
		}
		err = pgsession.Advise(err)
		m.failing[part], m.last = true, err
		switch {
		case m.away && m.kinds.New(err):
			m.Log.Error(m.System+" still fails, with another error", "at", part, "error", err)
		case !m.away:
			m.away, m.since, m.kinds = true, time.Now(), errtree.Kinds{}
			m.kinds.New(err)
			m.Log.Error(m.System+" does not answer as it should; trying again until it does", "at", part, "error", err)
			m.notify(err)
		}
	}
}

// Waits records that a part that fails has nothing to try until Answered: its outage lasts until then.
func (m *Monitor) Waits(part string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing[part] {
		m.failing[part] = false
	}
}

// Answered records that the system has answered somebody: parts that wait for that do not fail any more.
func (m *Monitor) Answered() {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.failing, func(_ string, tries bool) bool { return !tries })
	m.endIfWell()
}

func (m *Monitor) endIfWell() {
	if m.away && len(m.failing) == 0 {
		m.away, m.ended, m.late = false, time.Now(), map[string]bool{}
		m.Log.Info(m.System+" is well again: nothing fails there now", "after",
			time.Since(m.since).Round(time.Millisecond))
		m.notify(nil)
	}
}

// Away reports whether a part that tries fails.
func (m *Monitor) Away() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, tries := range m.failing {
		if tries {
			return true
		}
	}
	return false
}

// Trouble returns the last error of an outage that lasts, and since when it does; nil: none does.
func (m *Monitor) Trouble() (since time.Time, last error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.away {
		return time.Time{}, nil
	}
	return m.since, m.last
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
