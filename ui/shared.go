package ui

import (
	"context"
	"sync"
	"time"
)

// shared is what all viewers are shown alike. However many wait for it, one read of it is under way at most.
type shared[T any] struct {
	every, timeout time.Duration
	read           func(ctx context.Context) T
	slots          chan struct{} // a place for each read that may be under way, of all that share it; nil: no bound

	mu    sync.Mutex
	value T
	at    time.Time     // when value was read; zero: never
	stale bool          // it is known to have changed since
	busy  chan struct{} // closed when the read that is under way ends; nil: none is
}

// get returns what was read last, and when; at is zero when nothing was. What is old is read again, and get waits for
// that at most so long.
func (s *shared[T]) get(ctx context.Context, wait time.Duration) (value T, at time.Time) {
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

// begin has what is old read again. It returns what is closed when the read that is under way ends, nil when there is
// none, and whether that began before something changed.
func (s *shared[T]) begin(ctx context.Context) (busy chan struct{}, outdated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy == nil && (s.stale || time.Since(s.at) >= s.every) {
		s.busy, s.stale = make(chan struct{}), false
		go s.refresh(context.WithoutCancel(ctx), s.busy) // it is everybody's: one viewer's end is not its end
	}
	return s.busy, s.busy != nil && s.stale
}

func (s *shared[T]) refresh(ctx context.Context, done chan struct{}) {
	if s.slots != nil {
		s.slots <- struct{}{} // those that are under way have a time-out
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

// changed has the next get read again.
func (s *shared[T]) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = true
}
