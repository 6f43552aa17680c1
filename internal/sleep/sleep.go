// Package sleep waits.
package sleep

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends, and then returns its error.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
