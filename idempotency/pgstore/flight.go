package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/outcome"
)

// flights holds the calls of InTx that run in this process, one per key. Other callers of the key wait for the flight
// without a connection each. Otherwise a hot key would take the whole pool, and its own flight could not look up the
// outcome of a COMMIT whose reply was lost.
type flights struct {
	mu    sync.Mutex
	byKey map[idempotency.Key]*flight
}

// flight is one running call of InTx, and afterwards its answer.
type flight struct {
	fingerprint idempotency.Fingerprint
	started     time.Time
	won         chan struct{} // closed when its handler runs: the key was free, and is this command's
	done        chan struct{} // closed at the end; the fields below are written before
	shared      bool          // res and err answer every caller with the same fingerprint
	res         idempotency.Result
	err         error
}

// join returns the key's flight. created: there was none, and the caller must run it.
func (fs *flights) join(r idempotency.Request) (f *flight, created bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byKey[r.Key]; f != nil {
		return f, false
	}
	if fs.byKey == nil {
		fs.byKey = map[idempotency.Key]*flight{}
	}
	f = &flight{
		fingerprint: r.Fingerprint, started: time.Now(), won: make(chan struct{}), done: make(chan struct{}),
	}
	fs.byKey[r.Key] = f
	return f, true
}

func (fs *flights) end(k idempotency.Key, f *flight) {
	fs.mu.Lock()
	delete(fs.byKey, k)
	fs.mu.Unlock()
	close(f.done)
}

// single runs do for one caller of a key at a time. The others wait, and get its answer or run do after it; another
// command is refused when do has called won. shared: the answer is another caller's.
func (s *Store) single(ctx context.Context, r idempotency.Request, do func(won func()) (idempotency.Result, error)) (
	res idempotency.Result, shared bool, err error,
) {
	var timer *time.Timer
	for {
		f, created := s.flights.join(r)
		if created {
			res, err = s.fly(ctx, r, f, do)
			return res, false, err
		}
		if timer == nil {
			timer = time.NewTimer(s.cfg.Wait)
			defer timer.Stop()
		}
		var otherWon <-chan struct{}
		if !r.Matches(f.fingerprint) {
			otherWon = f.won
		}
		select {
		case <-f.done:
		case <-otherWon:
			return res, false, &idempotency.MismatchError{State: idempotency.InProgress, Version: f.fingerprint.Version}
		case <-timer.C:
			return res, false, &idempotency.InProgressError{RetryAfter: s.cfg.Wait, Age: time.Since(f.started)}
		case <-ctx.Done():
			return res, false, notApplied(fmt.Errorf("pgstore: waiting for a key: %w", context.Cause(ctx)))
		}
		if f.shared && f.fingerprint == r.Fingerprint {
			res = f.res.Clone()
			res.Replayed = f.err == nil
			return res, true, f.err
		}
	}
}

// fly runs do as the key's flight. Waiting callers share a recorded result, and an error that isShared.
func (s *Store) fly(ctx context.Context, r idempotency.Request, f *flight,
	do func(won func()) (idempotency.Result, error),
) (
	idempotency.Result, error,
) {
	defer s.flights.end(r.Key, f) // after a panic, too
	res, err := do(sync.OnceFunc(func() { close(f.won) }))
	if f.shared = err == nil || ctx.Err() == nil && isShared(err); f.shared {
		f.res, f.err = res.Clone(), err
	}
	return res, err
}

// isShared reports whether an error answers every caller of the key, as that of an unreachable database does. Errors of
// the handler do not: each caller's own handler may succeed.
func isShared(err error) bool {
	class, _ := outcome.Of(err)
	return class == outcome.ClassRetryable || errors.Is(err, idempotency.ErrUnknown) ||
		errors.Is(err, idempotency.ErrMismatch) || errors.Is(err, idempotency.ErrExpired)
}
