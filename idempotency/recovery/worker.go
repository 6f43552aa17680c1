package recovery

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Worker recovers operations whose outcome is unknown. Any number of workers may share a store.
type Worker struct {
	store    store.Recoverable
	guard    *guard.Guard
	handlers map[string]Handler
	cfg      Config
	log      *slog.Logger
}

// New returns a worker with a handler for each operation, by name.
func New(store store.Recoverable, handlers map[string]Handler, cfg Config) (*Worker, error) {
	if store == nil {
		return nil, errors.New("recovery: a worker needs a store")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	guard, err := guard.New(store, guard.Config{Lease: cfg.Lease, Logger: cfg.Logger})
	if err != nil {
		return nil, fmt.Errorf("recovery: %w", err)
	}
	return &Worker{store: store, guard: guard, handlers: maps.Clone(handlers), cfg: cfg, log: cfg.Logger}, nil
}

// Run recovers until ctx ends, then waits for operations in progress for at most Config.Drain, and returns nil. It
// retries after errors of the store.
func (w *Worker) Run(ctx context.Context) error {
	workCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	drain := make(chan *time.Timer, 1)
	defer context.AfterFunc(ctx, func() { drain <- time.AfterFunc(w.cfg.Drain, cancel) })()
	defer func() {
		select {
		case t := <-drain:
			t.Stop()
		default:
		}
	}()
	var swept time.Time
	running, ended := 0, make(chan struct{}, w.cfg.Parallel)
	for ctx.Err() == nil {
		more := true // operations may be due that cannot begin yet
		if free := w.cfg.Parallel - running; free > 0 {
			claimed, leased, err := w.claim(ctx, free)
			for _, c := range claimed {
				running++
				go func() {
					defer func() { ended <- struct{}{} }()
					w.recover(workCtx, c, leased)
				}()
			}
			if err != nil && ctx.Err() == nil {
				w.failed("query", err)
			}
			more = err == nil && len(claimed) == free
		}
		if w.cfg.SweepEvery > 0 && time.Since(swept) >= w.cfg.SweepEvery {
			w.sweep(ctx)
			swept = time.Now()
		}
		timer := time.NewTimer(w.cfg.Every)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				waiting = false
			case <-timer.C:
				waiting = false
			case <-ended:
				running--
				waiting = !more
			}
		}
		timer.Stop()
	}
	for ; running > 0; running-- {
		<-ended
	}
	return nil
}

// Once processes up to Config.Parallel operations that are due, and returns their number. If the store fails within the
// query, Once processes the part that it returned.
func (w *Worker) Once(ctx context.Context) (n int, err error) {
	claimed, leased, err := w.claim(ctx, w.cfg.Parallel)
	var wg sync.WaitGroup
	for _, c := range claimed {
		wg.Go(func() { w.recover(ctx, c, leased) })
	}
	wg.Wait()
	return len(claimed), err
}

// claim claims operations that begin at once: a claim counts as an attempt. Their leases began at leased or later.
func (w *Worker) claim(ctx context.Context, limit int) (claimed []store.ClaimResult, leased time.Time, err error) {
	opt := store.RecoverOptions{Limit: limit, Lease: w.cfg.Lease, Grace: w.cfg.Grace, Token: rand.Text()}
	leased = time.Now()
	if w.cfg.SkipUnhandled {
		opt.Operations = slices.Sorted(maps.Keys(w.handlers))
		if len(opt.Operations) == 0 {
			return nil, leased, nil
		}
	}
	if claimed, err = w.store.Recover(ctx, opt); err != nil {
		err = fmt.Errorf("recovery: query operations: %w", err)
	}
	return claimed, leased, err
}

// recover processes one operation, and reports its outcome.
func (w *Worker) recover(ctx context.Context, c store.ClaimResult, leased time.Time) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	outcome, err := w.process(ctx, c, leased)
	rec := c.Record
	level := slog.LevelInfo
	switch outcome {
	case Stuck:
		level = slog.LevelError
	case Postponed, Lost:
		level = slog.LevelWarn
	}
	w.log.Log(ctx, level, "recovery processed an operation", "operation", rec.Key.Operation, "outcome", outcome,
		"stage",
		rec.Progress.Stage, "attempts", rec.Attempts, "age", rec.Age.Round(time.Millisecond), "error", err)
	if w.cfg.Observer.Recovered != nil {
		w.cfg.Observer.Recovered(RecoveredInfo{
			Operation: rec.Key.Operation, Outcome: outcome, Stage: rec.Progress.Stage, Attempts: rec.Attempts,
			Age: rec.Age, Err: err,
		})
	}
}

// process finishes the operation, or gives it back.
func (w *Worker) process(ctx context.Context, c store.ClaimResult, leased time.Time) (Outcome, error) {
	if time.Since(leased) > w.cfg.Lease/10 { // the query took long
		if err := w.store.Extend(ctx, c.Lease, w.cfg.Lease); err != nil {
			return Lost, err
		}
	}
	h, ok := w.handlers[c.Record.Key.Operation]
	if !ok {
		return w.giveBack(ctx, c, fmt.Errorf("no handler for operation %q", c.Record.Key.Operation))
	}
	r := &resolution{handler: h}
	res, err := w.guard.Resume(ctx, c, r.recoverPanics)
	switch {
	case errors.Is(err, errNothingDone):
		if err := w.store.Release(context.WithoutCancel(ctx), c.Lease); err != nil {
			return Lost, err
		}
		return Released, nil
	case errors.Is(err, store.ErrLeaseLost), errors.Is(err, guard.ErrUnrecorded):
		return Lost, err
	case err != nil:
		return w.giveBack(ctx, c, err)
	case res.Replayed:
		return Lost, nil // another worker has finished it
	case res.Failure != "" && r.compensated:
		return Compensated, nil
	case res.Failure != "":
		return Failed, nil
	}
	return Completed, nil
}

// giveBack postpones an operation whose outcome is still unknown, or marks it stuck.
func (w *Worker) giveBack(ctx context.Context, c store.ClaimResult, cause error) (Outcome, error) {
	stuck := errors.Is(cause, guard.ErrStuck) || w.cfg.MaxAttempts > 0 && c.Record.Attempts >= w.cfg.MaxAttempts
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Lease)
	defer cancel()
	// This attempt may have called a provider: its request has the grace of any other.
	after := max(w.delay(c.Record.Attempts), w.cfg.Grace)
	if err := w.store.Postpone(ctx, c.Lease, store.Reason(cause), after, stuck); err != nil {
		return Lost, errors.Join(cause, err)
	}
	if stuck {
		return Stuck, cause
	}
	return Postponed, cause
}

// delay doubles with each attempt, with jitter.
func (w *Worker) delay(attempts int) time.Duration {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(w.cfg.Backoff), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(w.cfg.MaxBackoff), backoff.WithMaxElapsedTime(0))
	for range min(attempts, 40) - 1 {
		b.NextBackOff()
	}
	return b.NextBackOff()
}

// sweep removes expired results and keys in batches.
func (w *Worker) sweep(ctx context.Context) {
	const batch = 1000
	for more := true; more && ctx.Err() == nil; {
		swept, err := w.store.Sweep(ctx, batch)
		if err != nil {
			if ctx.Err() == nil {
				w.failed("sweep", err)
			}
			return
		}
		if w.cfg.Observer.Swept != nil {
			w.cfg.Observer.Swept(swept)
		}
		more = swept.More
	}
}

func (w *Worker) failed(op string, err error) {
	w.log.Warn("recovery: the store failed", "during", op, "error", err)
	if w.cfg.Observer.Failed != nil {
		w.cfg.Observer.Failed(err)
	}
}
