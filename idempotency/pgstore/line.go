package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// line lets the callers of one key in this process wait for the one that is at it without a connection each: a hot key
// would take the whole pool from all others, its own first caller's question after a lost COMMIT included.
type line struct {
	mu    sync.Mutex
	first map[idempotency.Key]*first
}

// first is the caller that is at it.
type first struct {
	of    idempotency.Fingerprint
	since time.Time
	over  chan struct{} // closed at the end; what follows is written before
	// shared: res and err are the answer to the same request of anybody.
	shared bool
	res    idempotency.Result
	err    error
}

// enter makes the caller the first, or returns who is.
func (l *line) enter(r idempotency.Request) (f *first, mine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.first[r.Key]; f != nil {
		return f, false
	}
	if l.first == nil {
		l.first = map[idempotency.Key]*first{}
	}
	f = &first{of: r.Fingerprint, since: time.Now(), over: make(chan struct{})}
	l.first[r.Key] = f
	return f, true
}

func (l *line) leave(k idempotency.Key, f *first) {
	l.mu.Lock()
	delete(l.first, k)
	l.mu.Unlock()
	close(f.over)
}

// inLine runs do for the first caller of a key, and lets the others have its answer or be the first after it. shared
// tells that the answer is another caller's.
func (s *Store) inLine(ctx context.Context, r idempotency.Request, do func() (idempotency.Result, error)) (
	res idempotency.Result, shared bool, err error,
) {
	var timer *time.Timer
	for {
		f, mine := s.line.enter(r)
		if mine {
			res, err = s.lead(ctx, r, f, do)
			return res, false, err
		}
		if timer == nil {
			timer = time.NewTimer(s.cfg.Wait)
			defer timer.Stop()
		}
		select {
		case <-f.over:
		case <-timer.C:
			return res, false, &idempotency.InProgressError{RetryAfter: s.cfg.Wait, Age: time.Since(f.since)}
		case <-ctx.Done():
			return res, false, nothing(fmt.Errorf("pgstore: waiting for a key: %w", context.Cause(ctx)))
		}
		if f.shared && f.of == r.Fingerprint {
			res = f.res.Clone()
			res.Replayed = f.err == nil
			return res, true, f.err
		}
	}
}

// lead is the first one's. What is recorded is the others' answer too, and so is an error that says to come again, as
// of a database that is away; any other is its handler's or its context's, and its own.
func (s *Store) lead(ctx context.Context, r idempotency.Request, f *first, do func() (idempotency.Result, error)) (
	idempotency.Result, error,
) {
	defer s.line.leave(r.Key, f) // a panic, too
	res, err := do()
	if f.shared = err == nil || ctx.Err() == nil && everybodys(err); f.shared {
		f.res, f.err = res.Clone(), err
	}
	return res, err
}

func everybodys(err error) bool {
	class, _ := idempotency.Classify(err)
	return class == idempotency.ClassRetryable || errors.Is(err, idempotency.ErrUnknown) ||
		errors.Is(err, idempotency.ErrMismatch) ||
		errors.Is(err, idempotency.ErrExpired)
}
