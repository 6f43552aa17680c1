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

// New makes a worker with a handler for each operation, by its name.
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

// Run recovers until ctx ends, then lets what is under way end, for at most Config.Drain, and returns nil. A store that
// does not answer is asked again.
func (w *Worker) Run(ctx context.Context) error {
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
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
		taken, err := w.once(ctx, working)
		if err != nil && ctx.Err() == nil {
			w.failed("looking for operations to recover", err)
		}
		if w.cfg.SweepEvery > 0 && time.Since(swept) >= w.cfg.SweepEvery {
			w.sweep(ctx)
			swept = time.Now()
		}
		if err == nil && taken == w.cfg.Batch {
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

// Once takes one batch of operations that are due and works at them, and returns how many they were. An error may come
// beside those that the store could still give.
func (w *Worker) Once(ctx context.Context) (taken int, err error) { return w.once(ctx, ctx) }

func (w *Worker) once(ctx, working context.Context) (int, error) {
	opt := store.RecoverOptions{Limit: w.cfg.Batch, Lease: w.cfg.Lease, Grace: w.cfg.Grace, Token: rand.Text()}
	if w.cfg.OthersElsewhere {
		opt.Operations = slices.Sorted(maps.Keys(w.handlers))
		if len(opt.Operations) == 0 {
			return 0, nil
		}
	}
	since := time.Now()
	claimed, err := w.store.Recover(ctx, opt)
	if err != nil {
		err = fmt.Errorf("recovery: taking operations: %w", err)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, w.cfg.Parallel)
	for _, c := range claimed {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			w.recover(working, c, since)
		})
	}
	wg.Wait()
	return len(claimed), err
}

// recover works at one operation, and tells what became of it.
func (w *Worker) recover(ctx context.Context, c store.ClaimResult, since time.Time) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	outcome, err := w.decide(ctx, c, since)
	rec := c.Record
	level := slog.LevelInfo
	switch outcome {
	case Stuck:
		level = slog.LevelError
	case Postponed, Lost:
		level = slog.LevelWarn
	}
	w.log.Log(ctx, level, "an operation whose outcome was unknown was taken", "operation", rec.Key.Operation, "outcome",
		outcome,
		"stage", rec.Progress.Stage, "attempts", rec.Attempts, "age", rec.Age.Round(time.Millisecond), "error", err)
	if w.cfg.Observer.Recovered != nil {
		w.cfg.Observer.Recovered(RecoveredInfo{
			Operation: rec.Key.Operation, Outcome: outcome, Stage: rec.Progress.Stage, Attempts: rec.Attempts,
			Age: rec.Age, Err: err,
		})
	}
}

// decide ends the operation, or gives it back.
func (w *Worker) decide(ctx context.Context, c store.ClaimResult, since time.Time) (Outcome, error) {
	if time.Since(since) > w.cfg.Lease/10 { // it has waited for the others of its batch
		if err := w.store.Extend(ctx, c.Lease, w.cfg.Lease); err != nil {
			return Lost, err
		}
	}
	h, ok := w.handlers[c.Record.Key.Operation]
	if !ok {
		return w.giveBack(ctx, c, fmt.Errorf("no handler for operation %q", c.Record.Key.Operation))
	}
	t := &try{handler: h}
	res, err := w.guard.Resume(ctx, c, t.safely)
	switch {
	case errors.Is(err, errFree):
		if err := w.store.Release(context.WithoutCancel(ctx), c.Lease); err != nil {
			return Lost, err
		}
		return Released, nil
	case errors.Is(err, store.ErrLeaseLost), errors.Is(err, guard.ErrUnrecorded):
		return Lost, err
	case err != nil:
		return w.giveBack(ctx, c, err)
	case res.Replayed:
		return Lost, nil // another one has ended it
	case res.Failure != "" && t.undone:
		return Compensated, nil
	case res.Failure != "":
		return Failed, nil
	}
	return Completed, nil
}

// giveBack postpones an operation that stays unknown, or gives it to a person.
func (w *Worker) giveBack(ctx context.Context, c store.ClaimResult, why error) (Outcome, error) {
	stuck := errors.Is(why, guard.ErrStuck) || w.cfg.MaxAttempts > 0 && c.Record.Attempts >= w.cfg.MaxAttempts
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Lease)
	defer cancel()
	if err := w.store.Postpone(ctx, c.Lease, store.Reason(why), w.wait(c.Record.Attempts), stuck); err != nil {
		return Lost, errors.Join(why, err)
	}
	if stuck {
		return Stuck, why
	}
	return Postponed, why
}

// wait doubles with each attempt, with jitter.
func (w *Worker) wait(attempts int) time.Duration {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(w.cfg.Backoff), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(w.cfg.MaxBackoff), backoff.WithMaxElapsedTime(0))
	for range min(attempts, 40) - 1 {
		b.NextBackOff()
	}
	return b.NextBackOff()
}

// sweep removes what is no longer kept, batch by batch.
func (w *Worker) sweep(ctx context.Context) {
	const batch = 1000
	for more := true; more && ctx.Err() == nil; {
		swept, err := w.store.Sweep(ctx, batch)
		if err != nil {
			if ctx.Err() == nil {
				w.failed("sweeping", err)
			}
			return
		}
		if w.cfg.Observer.Swept != nil {
			w.cfg.Observer.Swept(swept)
		}
		more = swept.More
	}
}

func (w *Worker) failed(what string, err error) {
	w.log.Warn("recovery: the store did not answer", "at", what, "error", err)
	if w.cfg.Observer.Failed != nil {
		w.cfg.Observer.Failed(err)
	}
}
