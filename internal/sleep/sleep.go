// Package sleep waits.
package sleep

import (
	"context"
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
