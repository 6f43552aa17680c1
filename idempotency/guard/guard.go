package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/outcome"
)

// Guard runs the work of a request once: the first caller of a key runs it under a lease, the others get its result or
// an error. It is safe for concurrent use.
//
// Concurrent callers of one key in a process share one attempt, and one claim of the store. The work's context ends
// Config.Finish after the last of them has left, and when the lease is lost, with the cause [store.ErrLeaseLost]. The
// guard records the outcome of the work even then.
type Guard struct {
	store   store.Store
	cfg     Config
	log     *slog.Logger
	flights flights
}

// New returns a guard over a store. An error is about cfg.
func New(store store.Store, cfg Config) (*Guard, error) {
	if store == nil {
		return nil, errors.New("idempotency: a guard needs a store")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Guard{store: store, cfg: cfg, log: cfg.Logger}, nil
}

// Do runs local work once, normally one transaction of a database other than the store's. (For the store's own
// database, pgstore's InTx commits key and effect together, and the outcome is never unknown.)
//
// It returns the recorded result, Replayed if it is an earlier attempt's; a final refusal is a Result with a Failure
// and no error. An error matches [idempotency.ErrMismatch], [idempotency.ErrInProgress], [idempotency.ErrUnknown],
// [idempotency.ErrExpired], [store.ErrLeaseLost], [ErrUnrecorded] or [idempotency.ErrInvalidKey], or is the work's or
// the store's.
//
// Errors of the work: [outcome.Terminal] is recorded and replayed. [outcome.Retryable] means that nothing has
// happened, and releases the key. Every other error, and a panic, make the outcome unknown: it may be that of a COMMIT
// whose reply was lost, or of what the work called after its COMMIT. Config.Classify may know more, as [ClassifySQL]
// does of work that is one transaction. After a take-over (Config.Rerun) an error does not release the key, because the
// earlier owner may have committed.
//
// If the claim fails because of the store, nothing was run, and the error is [outcome.Retryable]. For work that
// needs a fence, use Run and [Op.Fence].
func (g *Guard) Do(ctx context.Context, r idempotency.Request, work func(ctx context.Context) (idempotency.Result,
	error),
) (idempotency.Result, error) {
	return g.run(ctx, r, func(ctx context.Context, _ *Op) (idempotency.Result, error) { return work(ctx) })
}

// Run runs work that calls providers, in phases with recovery points: see [Op]. It returns the same as [Guard.Do].
//
// Errors of the work after the first call of a provider: [outcome.Terminal] is recorded and replayed, unless a step
// is open; every other one, and a panic, keeps the recovery points and makes the outcome unknown: recovery continues,
// or the next caller if the operation is in Config.Rerun. A success with an open step is unknown too.
//
// After a local phase and before the first call, an error that would release the key only ends its lease, because the
// phase has committed: another command is refused, and the next attempt continues from the recovery points, the
// caller's at once, or recovery's after Config.RecoverAfter. Before the first phase errors are as in Do.
func (g *Guard) Run(ctx context.Context, r idempotency.Request,
	work func(ctx context.Context, op *Op) (idempotency.Result, error),
) (idempotency.Result, error) {
	return g.run(ctx, r, work)
}

// Resume continues an operation that the caller got from [store.Recoverer.Recover], under its lease, which Resume
// extends. It records a success and a Terminal error as [Guard.Run] does; after any other error, even a Retryable one,
// the caller still holds the key, with the new recovery points, and must postpone or release it. The work must not undo
// a recorded phase by itself, because the next attempt relies on it; a saga's Undo is recorded.
func (g *Guard) Resume(ctx context.Context, c store.ClaimResult,
	work func(ctx context.Context, op *Op) (idempotency.Result, error),
) (idempotency.Result, error) {
	if !c.Won {
		return idempotency.Result{}, errors.New("idempotency: Resume needs a key that the caller has won")
	}
	return g.work(ctx, &attempt{guard: g, op: newOp(g, c), began: time.Now(), resume: true}, work)
}

type work = func(ctx context.Context, op *Op) (idempotency.Result, error)

// run shares attempts among the callers of this process, and waits for those of other processes.
func (g *Guard) run(ctx context.Context, r idempotency.Request, do work) (idempotency.Result, error) {
	if err := r.Key.Check(); err != nil {
		return idempotency.Result{}, err
	}
	deadline := time.Now().Add(g.cfg.Wait)
	for {
		f, role := g.flights.join(r)
		if role == leader {
			return g.lead(ctx, f, r, deadline, do)
		}
		if role == alone {
			return g.attempt(ctx, r, deadline, do, func() {})
		}
		res, err := g.follow(ctx, f, r, deadline)
		if errors.Is(err, errNoSharedAnswer) {
			continue
		}
		return res, err
	}
}

// lead makes the flight's attempt in the caller's goroutine, which a panic reaches.
func (g *Guard) lead(ctx context.Context, f *flight, r idempotency.Request, deadline time.Time, do work) (
	idempotency.Result, error,
) {
	shared, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	g.flights.setCancel(f, cancel)
	// The leader leaves when its context ends, and continues for the other callers.
	leave := context.AfterFunc(ctx, func() { g.flights.leave(f, context.Cause(ctx)) })
	defer leave()
	defer g.flights.end(f)
	f.res, f.err = g.attempt(shared, r, deadline, do, func() { close(f.won) })
	f.answered = true
	return f.res.Clone(), f.err
}

// errNoSharedAnswer makes run try again.
var errNoSharedAnswer = errors.New("the flight has no answer to share")

// follow waits for the attempt of another caller of this process.
func (g *Guard) follow(ctx context.Context, f *flight, r idempotency.Request, deadline time.Time) (idempotency.Result,
	error,
) {
	stay := context.AfterFunc(ctx, func() { g.flights.leave(f, context.Cause(ctx)) })
	defer func() {
		if stay() {
			g.flights.leave(f, errors.New("no caller waits for this work"))
		}
	}()
	select {
	case <-f.done:
	case <-f.won:
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-f.done:
		case <-timer.C:
			age := time.Since(f.since)
			notify(g.cfg.Observer.InProgress, idempotency.InProgressInfo{Operation: r.Key.Operation, Age: age})
			return idempotency.Result{}, &idempotency.InProgressError{RetryAfter: g.cfg.Lease, Age: age}
		case <-ctx.Done():
			return idempotency.Result{}, context.Cause(ctx)
		}
	case <-ctx.Done():
		return idempotency.Result{}, context.Cause(ctx)
	}
	if !f.answered || errors.Is(f.err, idempotency.ErrInProgress) && time.Now().Before(deadline) {
		return idempotency.Result{}, errNoSharedAnswer
	}
	if f.err != nil {
		return f.res.Clone(), f.err
	}
	res := f.res.Clone()
	res.Replayed = true
	notify(g.cfg.Observer.Replayed, idempotency.ReplayedInfo{
		Operation: r.Key.Operation, Failure: res.Failure,
		Shared: true,
	})
	return res, nil
}

// attempt claims the key and runs the work, or returns the answer of the record. It calls won before the work.
func (g *Guard) attempt(ctx context.Context, r idempotency.Request, deadline time.Time, do work, won func()) (
	idempotency.Result, error,
) {
	if !g.flights.enter(r.Key.Tenant, g.cfg.PerTenant) {
		return idempotency.Result{}, outcome.Retryable(
			fmt.Errorf("idempotency: the key was not claimed: %d keys of its tenant are in progress here",
				g.cfg.PerTenant))
	}
	defer g.flights.exit(r.Key.Tenant)
	opt := store.ClaimOptions{Token: rand.Text(), Lease: g.cfg.Lease, Keep: g.cfg.Keep}
	for {
		if ctx.Err() != nil {
			return idempotency.Result{}, outcome.Retryable(fmt.Errorf("idempotency: the key was not claimed: %w",
				context.Cause(ctx)))
		}
		c, since, err := g.claim(ctx, r, opt)
		if err != nil {
			return idempotency.Result{}, g.undoClaim(ctx, r, opt, err)
		}
		if c.Won {
			won()
			ctx, end := sleep.Outlive(ctx, g.cfg.Finish)
			defer end()
			return g.work(ctx, &attempt{guard: g, op: newOp(g, c), began: since, takenOver: opt.Rerun}, do)
		}
		res, err := c.Record.Answer(r)
		// Only a second claim may take the key over, so its winner knows that there may have been an earlier owner.
		if errors.Is(err, idempotency.ErrUnknown) && !opt.Rerun && slices.Contains(g.cfg.Rerun, r.Key.Operation) {
			opt.Rerun = true
			continue
		}
		if !errors.Is(err, idempotency.ErrInProgress) || !time.Now().Before(deadline) {
			g.observe(r.Key.Operation, c.Record, res, err)
			return res, err
		}
		if err := g.await(ctx, r, c.Record, deadline); err != nil {
			return idempotency.Result{}, err
		}
		if opt.Rerun {
			// The earlier claim with Rerun may still be in flight, and take the key over: with a new token this attempt
			// cannot mistake that for its own claim and release the key.
			opt.Token, opt.Rerun = rand.Text(), false
		}
	}
}

// observe reports the answer to a caller that did not win the key.
func (g *Guard) observe(operation string, rec store.Record, res idempotency.Result, err error) {
	o := g.cfg.Observer
	switch {
	case err == nil:
		notify(o.Replayed, idempotency.ReplayedInfo{Operation: operation, Failure: res.Failure})
	case errors.Is(err, idempotency.ErrMismatch):
		g.log.Warn("an idempotency key was used for another command and refused", "operation", operation, "state",
			rec.State)
		notify(o.Mismatched, idempotency.MismatchedInfo{Operation: operation, State: rec.State})
	case errors.Is(err, idempotency.ErrInProgress):
		notify(o.InProgress, idempotency.InProgressInfo{Operation: operation, Age: rec.Age})
	case errors.Is(err, idempotency.ErrExpired):
		notify(o.ExpiredRetry, idempotency.ExpiredInfo{Operation: operation})
	default:
		notify(o.Unknown, idempotency.UnknownInfo{Operation: operation, Stage: rec.Progress.Stage})
	}
}

func notify[T any](f func(T), info T) {
	if f != nil {
		f(info)
	}
}
