package pgstore

import (
	"context"
	"time"
)

// Sweeper deletes results and tombstones whose retention has ended, for a service that uses only InTx and Within. A
// recovery.Worker does the same. The Store's Logger gets a warning for each sweep that failed; it is retried.
type Sweeper struct {
	// Store is the store to sweep. Required.
	Store *Store
	// Every is the time between two sweeps. Default 1 min.
	Every time.Duration
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
		if err != nil && ctx.Err() == nil {
			w.Store.log.WarnContext(ctx, "old keys were not removed", "error", err)
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
