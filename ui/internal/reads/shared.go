package reads

import (
	"context"
	"sync"
	"time"
)

// read is a Shared of any kind.
type read interface {
	Changed()
	settle(ctx context.Context)
}

// Shared is a cached read for all viewers. At most one read is under way, however many viewers wait for it.
type Shared[T any] struct {
	every, timeout time.Duration
	read           func(ctx context.Context) T
	slots          chan struct{} // limits the reads that are under way, of all Shared values with it; nil: no limit

	mu    sync.Mutex
	value T
	at    time.Time     // when value was read; zero: never
	stale bool          // changed since it was read
	busy  chan struct{} // closed when the read under way ends; nil: none
}

// Get returns the last value, and when it was read; at is zero before the first read. It reads an old value again, and
// waits for that read for at most wait.
func (s *Shared[T]) Get(ctx context.Context, wait time.Duration) (value T, at time.Time) {
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
	return s.value, s.at
}

// begin starts a read if the value is old. busy is closed when the read under way ends, and nil if there is none.
// outdated reports whether that read began before the last change.
func (s *Shared[T]) begin(ctx context.Context) (busy chan struct{}, outdated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy == nil && (s.stale || time.Since(s.at) >= s.every) {
		s.busy, s.stale = make(chan struct{}), false
		go s.refresh(context.WithoutCancel(ctx), s.busy) // other viewers may wait for it
	}
	return s.busy, s.busy != nil && s.stale
}

func (s *Shared[T]) refresh(ctx context.Context, done chan struct{}) {
	if s.slots != nil {
		s.slots <- struct{}{} // the reads under way have a time-out
		defer func() { <-s.slots }()
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	value := s.read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.at, s.busy = value, time.Now(), nil
	close(done)
}

// Changed makes the next Get read again.
func (s *Shared[T]) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = true
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
