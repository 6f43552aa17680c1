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
)

// Guard lets the work of a request happen once: the first caller of a key runs it under a lease, the others get its
// result, or are told why not. It is safe for concurrent use.
//
// Callers of one key in one process share one attempt: a hot key asks the store once. The work's context ends
// Config.Finish after the last of them has left, and when the lease is lost, with the cause [store.ErrLeaseLost]. What
// has become of the work is recorded even then.
type Guard struct {
	store   store.Store
	cfg     Config
	log     *slog.Logger
	flights flights
}

// New makes a guard over a store. It fails when cfg cannot be right.
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

// Do runs local work once: normally one transaction of a database that is not the store's (where it is the store's,
// pgstore's InTx commits key and effect together, and nothing of it can be unknown).
//
// It returns the result that is recorded, Replayed when it is a former attempt's; a final refusal is a Result with a
// Failure and no error. Otherwise errors.Is tells [idempotency.ErrMismatch], [idempotency.ErrInProgress],
// [idempotency.ErrUnknown], [idempotency.ErrExpired], [store.ErrLeaseLost], [ErrUnrecorded] and
// [idempotency.ErrInvalidKey]; any other error is the work's or the store's.
//
// What an error of the work means: [idempotency.Terminal] is recorded and replayed; [idempotency.Retryable], an error
// without a mark and a panic say that the transaction was rolled back, and free the key; [idempotency.OutcomeUnknown],
// and an error without a mark after the context ended, make the outcome unknown. A COMMIT whose answer was lost must be
// [idempotency.OutcomeUnknown]: Config.Classify can see to that. Work that was taken over from an owner who vanished
// (Config.Rerun) frees no key: what that one committed is not undone with it.
//
// When the store did not answer the claim, nothing was run: that error is [idempotency.Retryable]. Work that has to
// give a fence to its effect takes Run, whose [Op.Fence] it is.
func (g *Guard) Do(ctx context.Context, r idempotency.Request, work func(ctx context.Context) (idempotency.Result,
	error),
) (idempotency.Result, error) {
	return g.run(ctx, r, func(ctx context.Context, _ *Op) (idempotency.Result, error) { return work(ctx) })
}

// Run runs work that calls providers, in phases with recovery points: see [Op]. It returns as [Guard.Do] does.
//
// What an error of the work means, once a provider was asked: [idempotency.Terminal] is recorded and replayed, unless
// the outcome of a step is open; every other one, and a panic, keeps the recovery points and makes the outcome unknown:
// recovery goes on, or the next caller when the operation is in Config.Rerun. A success with an open step is unknown
// too.
//
// After a local phase, and before a provider is asked, an error that would free the key only ends its lease. What the
// phase has committed belongs to this command: another one is refused, and the next attempt goes on from the recovery
// points, the caller's at once, or recovery's after Config.RecoverAfter. Before the first phase it is as in Do.
func (g *Guard) Run(ctx context.Context, r idempotency.Request,
	work func(ctx context.Context, op *Op) (idempotency.Result, error),
) (idempotency.Result, error) {
	return g.run(ctx, r, work)
}

// Resume goes on with an operation that the caller has taken from [store.Recoverer.Recover], under the recoverer's
// lease, which it extends meanwhile. A success and a Terminal error are recorded as in [Guard.Run]; after any other
// error, a Retryable one too, the key is as it was, with the recovery points made since, and still the caller's, who
// postpones or releases it. So work must not take back by itself what a recorded phase did: the next attempt goes on as
// if that were there. A saga's Undo is recorded.
func (g *Guard) Resume(ctx context.Context, c store.ClaimResult,
	work func(ctx context.Context, op *Op) (idempotency.Result, error),
) (idempotency.Result, error) {
	if !c.Won {
		return idempotency.Result{}, errors.New("idempotency: the key is not the caller's")
	}
	return g.work(ctx, &attempt{guard: g, op: newOp(g, c), began: time.Now(), resume: true}, work)
}

type work = func(ctx context.Context, op *Op) (idempotency.Result, error)

// run shares the attempts of one key among the callers of this process, and waits for those of others.
func (g *Guard) run(ctx context.Context, r idempotency.Request, do work) (idempotency.Result, error) {
	if err := r.Key.Check(); err != nil {
		return idempotency.Result{}, err
	}
	until := time.Now().Add(g.cfg.Wait)
	for {
		f, role := g.flights.join(r)
		if role == leader {
			return g.lead(ctx, f, r, until, do)
		}
		if role == alone {
			return g.attempt(ctx, r, until, do, func() {})
		}
		res, err := g.follow(ctx, f, r, until)
		if errors.Is(err, errAgain) {
			continue
		}
		return res, err
	}
}

// lead makes the attempt that the others wait for, in this goroutine: a panic is the caller's.
func (g *Guard) lead(ctx context.Context, f *flight, r idempotency.Request, until time.Time, do work) (
	idempotency.Result, error,
) {
	shared, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	g.flights.begin(f, cancel)
	// The leader leaves when its context ends, and goes on when others still wait.
	leave := context.AfterFunc(ctx, func() { g.flights.leave(f, context.Cause(ctx)) })
	defer leave()
	defer g.flights.end(f)
	f.res, f.err = g.attempt(shared, r, until, do, func() { close(f.working) })
	f.answered = true
	return f.res.Clone(), f.err
}

// errAgain is between run and follow: there is no answer to share.
var errAgain = errors.New("look again")

// follow waits for the attempt of another caller of this process.
func (g *Guard) follow(ctx context.Context, f *flight, r idempotency.Request, until time.Time) (idempotency.Result,
	error,
) {
	left := context.AfterFunc(ctx, func() { g.flights.leave(f, context.Cause(ctx)) })
	defer func() {
		if left() {
			g.flights.leave(f, errors.New("no caller waits for this work"))
		}
	}()
	select {
	case <-f.done:
	case <-f.working:
		timer := time.NewTimer(time.Until(until))
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
	if !f.answered || errors.Is(f.err, idempotency.ErrInProgress) && time.Now().Before(until) {
		return idempotency.Result{}, errAgain
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

// attempt claims the key and works, or says what is there; begin is called when the work begins.
func (g *Guard) attempt(ctx context.Context, r idempotency.Request, until time.Time, do work, begin func()) (
	idempotency.Result, error,
) {
	if !g.flights.enter(r.Key.Tenant, g.cfg.PerTenant) {
		return idempotency.Result{}, idempotency.Retryable(
			fmt.Errorf("idempotency: the key was not claimed: %d keys of its tenant are being worked at here",
				g.cfg.PerTenant))
	}
	defer g.flights.exit(r.Key.Tenant)
	opt := store.ClaimOptions{Token: rand.Text(), Lease: g.cfg.Lease}
	for {
		if ctx.Err() != nil {
			return idempotency.Result{}, idempotency.Retryable(fmt.Errorf("idempotency: the key was not claimed: %w",
				context.Cause(ctx)))
		}
		c, since, err := g.claim(ctx, r, opt)
		if err != nil {
			return idempotency.Result{}, g.takeBack(ctx, r, opt, err)
		}
		if c.Won {
			begin()
			ctx, end := g.finishing(ctx)
			defer end()
			return g.work(ctx, &attempt{guard: g, op: newOp(g, c), began: since, takenOver: opt.Rerun}, do)
		}
		res, err := c.Record.Answer(r)
		// Only a second claim takes a key over: whoever wins by it knows that there may have been somebody before.
		if errors.Is(err, idempotency.ErrUnknown) && !opt.Rerun && slices.Contains(g.cfg.Rerun, r.Key.Operation) {
			opt.Rerun = true
			continue
		}
		if !errors.Is(err, idempotency.ErrInProgress) || !time.Now().Before(until) {
			g.observe(r.Key.Operation, c.Record, res, err)
			return res, err
		}
		if err := g.await(ctx, r, c.Record, until); err != nil {
			return idempotency.Result{}, err
		}
		if opt.Rerun {
			// A claim by the former terms may still be under way. Its token must not be found here: what it takes over
			// is not released.
			opt.Token, opt.Rerun = rand.Text(), false
		}
	}
}

// finishing returns the context of work that has begun, which ends Config.Finish after ctx.
func (g *Guard) finishing(ctx context.Context) (context.Context, func()) {
	working, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(g.cfg.Finish)
		defer timer.Stop()
		select {
		case <-timer.C:
			end(context.Cause(ctx))
		case <-working.Done():
		}
	})
	return working, func() { stop(); end(nil) }
}

// observe tells what a caller was told.
func (g *Guard) observe(operation string, rec store.Record, res idempotency.Result, err error) {
	o := g.cfg.Observer
	switch {
	case err == nil:
		notify(o.Replayed, idempotency.ReplayedInfo{Operation: operation, Failure: res.Failure})
	case errors.Is(err, idempotency.ErrMismatch):
		g.log.Warn("an idempotency key was used for another command, and refused", "operation", operation, "state",
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
