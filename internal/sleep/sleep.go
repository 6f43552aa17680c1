// Package sleep waits.
package sleep

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// For waits for d, or until ctx ends. It returns the error of a ctx that has ended.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return ctx.Err()
}

// Outlive returns a context that ends d after ctx, with its cause.
func Outlive(ctx context.Context, d time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = For(longer, d)
		cancel(context.Cause(ctx))
	})
	return longer, func() { stop(); cancel(nil) }
}

// ErrStopping is returned by Idle when what it waits for shall not begin any more.
var ErrStopping = errors.New("stopping: nothing runs, and nothing more begins")

type stopKey struct{}

// WithStop returns a ctx that lives on while calls of Idle with it, or with one that is derived from it, end once stop
// is closed: what runs may finish, and what only waits may not.
func WithStop(ctx context.Context, stop <-chan struct{}) context.Context {
	return context.WithValue(ctx, stopKey{}, stop)
}

// Idle is For in which nothing runs that could finish.
func Idle(ctx context.Context, d time.Duration) error {
	stop, _ := ctx.Value(stopKey{}).(<-chan struct{}) // nil: never
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-stop:
		return cmp.Or(ctx.Err(), ErrStopping)
	}
	return ctx.Err()
}
