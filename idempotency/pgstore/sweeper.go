package pgstore

import (
	"context"
	"log/slog"
	"time"
)

// Sweeper removes what is no longer kept, for a service that has InTx and Within only. A recovery.Worker does it too.
type Sweeper struct {
	// Store is swept. Required.
	Store *Store
	// Every is the time between two sweeps. Default 1 min.
	Every time.Duration
	// Logger is told of a database that does not answer; it is asked again. Nil: nothing is logged.
	Logger *slog.Logger
}

// Run sweeps until ctx ends, and returns nil.
func (w Sweeper) Run(ctx context.Context) error {
	const batch = 1000
	every := w.Every
	if every <= 0 {
		every = time.Minute
	}
	timer := time.NewTicker(every)
	defer timer.Stop()
	for {
		swept, err := w.Store.Sweep(ctx, batch)
		if err != nil && ctx.Err() == nil && w.Logger != nil {
			w.Logger.WarnContext(ctx, "old keys were not removed", "error", err)
		}
		if err == nil && swept.More && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
}
