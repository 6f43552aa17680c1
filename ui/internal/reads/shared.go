package reads

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/effectonce/effectonce/ui/internal/format"
)

// read is a Shared of any kind.
type read interface {
	Changed()
	settle(ctx context.Context)
}

// Shared is a cached read for all viewers. At most one read is under way, however many viewers wait for it.
type Shared[T any] struct {
	every, timeout time.Duration
	read           func(ctx context.Context) (T, error)
	slots          chan struct{} // limits the reads that are under way, of all Shared values with it; nil: no limit

	mu      sync.Mutex
	value   T
	err     error
	asked   time.Time     // when the last read began
	at      time.Time     // when value and err were read; zero: never
	changes int           // how often it was changed
	seen    int           // the changes before value was read
	reading int           // the changes before the read under way
	busy    chan struct{} // closed when the read under way ends; nil: none
}

// slow is how long a read may take before that is said.
const slow = 5 * time.Second

// UnknownError says that a read has not ended: nothing is known since then, or at all.
type UnknownError struct {
	Since time.Time
	Asked time.Time // when the read that is under way began
}

// Error implements error, with a sentence for the page.
func (e *UnknownError) Error() string {
	if e.Since.IsZero() {
		return "It has not answered yet."
	}
	if time.Since(e.Asked) < slow {
		return "Not known since " + format.UTC(e.Since) + ": it is being looked at."
	}
	return "Not known since " + format.UTC(e.Since) + ": it has not answered again."
}

// Get returns the last value, when it was read, and the error of that. It reads an old value again, and waits for that
// read for at most wait. An UnknownError comes with a value that was never read, or is older than it should be. Without
// a wait such a value may be older than the last change.
func (s *Shared[T]) Get(ctx context.Context, wait time.Duration) (value T, at time.Time, err error) {
	enough := time.NewTimer(wait)
	defer enough.Stop()
	for waiting := wait > 0; ; {
		busy, outdated := s.begin(ctx)
		if busy == nil || !waiting {
			break
		}
		select {
		case <-busy:
			waiting = outdated
		case <-enough.C:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
		if !waiting {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := time.Since(s.at) >= s.every+s.timeout; old || wait > 0 && s.seen < s.changes {
		err = &UnknownError{s.at, s.asked}
	}
	return s.value, s.at, cmp.Or(s.err, err)
}

// begin starts a read if the value is old. busy is closed when the read under way ends, and nil if there is none.
// outdated reports whether that read began before the last change.
func (s *Shared[T]) begin(ctx context.Context) (busy chan struct{}, outdated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy == nil && (s.seen < s.changes || time.Since(s.at) >= s.every) {
		s.busy, s.reading = make(chan struct{}), s.changes
		s.asked = time.Now()
		go s.refresh(context.WithoutCancel(ctx), s.busy) // other viewers may wait for it
	}
	return s.busy, s.busy != nil && s.reading < s.changes
}

func (s *Shared[T]) refresh(ctx context.Context, done chan struct{}) {
	if s.slots != nil {
		s.slots <- struct{}{} // the reads under way have a time-out
		defer func() { <-s.slots }()
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	value, err := s.read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.err, s.at, s.seen, s.busy = value, err, time.Now(), s.reading, nil
	close(done)
}

// Changed makes the next Get read again.
func (s *Shared[T]) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
}

// settle waits for the read that is under way, until ctx ends.
func (s *Shared[T]) settle(ctx context.Context) {
	s.mu.Lock()
	busy := s.busy
	s.mu.Unlock()
	if busy == nil {
		return
	}
	select {
	case <-busy:
	case <-ctx.Done():
	}
}
