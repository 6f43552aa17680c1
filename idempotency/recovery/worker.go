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
	guard, err := guard.New(store, guard.Config{Lease: cfg.Lease, Keep: cfg.Keep, Logger: cfg.Logger})
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
	for ctx.Err() == nil {
		n, err := w.once(ctx, workCtx)
		if err != nil && ctx.Err() == nil {
			w.failed("query", err)
		}
		if w.cfg.SweepEvery > 0 && time.Since(swept) >= w.cfg.SweepEvery {
			w.sweep(ctx)
			swept = time.Now()
		}
		if err == nil && n == w.cfg.Batch {
			continue
		}
		timer := time.NewTimer(w.cfg.Every)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
	return nil
}

// Once processes one batch of operations that are due, and returns their number. If the store fails within the batch,
// Once processes the part that it returned.
func (w *Worker) Once(ctx context.Context) (n int, err error) { return w.once(ctx, ctx) }

func (w *Worker) once(ctx, workCtx context.Context) (int, error) {
	opt := store.RecoverOptions{Limit: w.cfg.Batch, Lease: w.cfg.Lease, Grace: w.cfg.Grace, Token: rand.Text()}
	if w.cfg.SkipUnhandled {
		opt.Operations = slices.Sorted(maps.Keys(w.handlers))
		if len(opt.Operations) == 0 {
			return 0, nil
		}
	}
	leased := time.Now()
	claimed, err := w.store.Recover(ctx, opt)
	if err != nil {
		err = fmt.Errorf("recovery: query operations: %w", err)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, w.cfg.Parallel)
	for _, c := range claimed {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			w.recover(workCtx, c, leased)
		})
	}
	wg.Wait()
	return len(claimed), err
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
	if time.Since(leased) > w.cfg.Lease/10 { // it waited for others of its batch
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
