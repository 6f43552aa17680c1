package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// attempt is one run of the work by the owner of a key.
type attempt struct {
	guard *Guard
	op    *Op
	began time.Time
	// resume: the key is a recoverer's, who decides what becomes of an operation that does not end.
	resume bool
	// takenOver: the key had another owner before. What its former owner has committed may not be known, so a failure
	// of this one's frees no key.
	takenOver bool
}

// work runs the work under the lease and records what became of it, a panic and runtime.Goexit included: they go on
// afterwards.
func (g *Guard) work(ctx context.Context, a *attempt, do work) (res idempotency.Result, err error) {
	ctx, k := g.keep(ctx, a.op.lease, a.began)
	defer k.stop()
	returned := false
	defer func() {
		if !returned {
			k.settling.Store(true)
			a.panicked(ctx)
		}
	}()
	res, err = do(ctx, a.op)
	returned = true
	k.settling.Store(true)
	return a.settle(ctx, res, err)
}

// ending is what is recorded of an attempt.
type ending int

const (
	finish     ending = iota
	releaseKey        // nothing has happened
	keepPhases        // local phases are committed: the next attempt goes on from there
	unknown
)

// decide says what an attempt's outcome means; docs of Do and Run say it in words.
func (a *attempt) decide(ctx context.Context, err error) (how ending, code string) {
	steps := a.op.Steps()
	_, isOpen := open(steps)
	class, code := idempotency.Classify(err)
	if class == idempotency.Unclassified && err != nil && a.guard.cfg.Classify != nil {
		class = a.guard.cfg.Classify(err)
	}
	switch {
	case err == nil && !isOpen:
		return finish, ""
	case class == idempotency.ClassTerminal && !isOpen:
		return finish, cmp.Or(code, "failed")
	case err == nil, class == idempotency.ClassTerminal, class == idempotency.ClassUnknown, asked(steps):
		return unknown, ""
	case class == idempotency.Unclassified && ctx.Err() != nil: // cut at a moment that nobody knows
		return unknown, ""
	case len(steps) > 0:
		return keepPhases, ""
	case a.takenOver:
		return unknown, ""
	}
	return releaseKey, ""
}

// settle records the outcome of the work, and returns what its caller is told.
func (a *attempt) settle(ctx context.Context, res idempotency.Result, err error) (idempotency.Result, error) {
	how, code := a.decide(ctx, err)
	if how == finish {
		res.Failure = cmp.Or(res.Failure, code)
		if wrong := res.Check(); wrong != nil {
			// a success: what it did is done
			if res, err = (idempotency.Result{}), idempotency.Retryable(wrong); code == "" {
				err = idempotency.OutcomeUnknown(wrong)
			}
			how, _ = a.decide(ctx, err)
		}
	}
	if errors.Is(err, store.ErrLeaseLost) && how != finish {
		return a.overtaken(ctx, err)
	}
	if step, isOpen := open(a.op.Steps()); isOpen && how == unknown {
		err = idempotency.OutcomeUnknown(errors.Join(fmt.Errorf("the outcome of step %q is not known", step.Name), err))
	}
	switch {
	case how == finish:
		return a.finish(ctx, res)
	case a.resume:
		return idempotency.Result{}, err
	case how == releaseKey, how == keepPhases:
		return idempotency.Result{}, a.release(ctx, how, err)
	}
	return idempotency.Result{}, a.markUnknown(ctx, err)
}

// record repeats a write until its outcome is known or RecordFor is over. The end of the caller's context does not cut
// it.
func (g *Guard) record(ctx context.Context, write func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(g.cfg.RecordFor, time.Millisecond))
	defer cancel()
	return retry(ctx, g.cfg.RecordFor, func() error { return write(ctx) })
}

func (a *attempt) finish(ctx context.Context, res idempotency.Result) (idempotency.Result, error) {
	g, l := a.guard, a.op.lease
	res.Replayed = false
	err := g.record(ctx, func(ctx context.Context) error { return g.store.Finish(ctx, l, res, g.cfg.Keep) })
	switch {
	case errors.Is(err, store.ErrLeaseLost):
		return a.overtaken(ctx, fmt.Errorf("idempotency: recording the result: %w", err))
	case err != nil && res.Failure != "": // nothing holds the next attempt to this refusal: it may be told yes
		return idempotency.Result{}, a.unknown(fmt.Errorf("a refusal may not be recorded: %w", err), false)
	case err != nil:
		g.log.Error("a result may not be recorded", "operation", l.Key.Operation, "fence", l.Fence, "error", err)
		return res, fmt.Errorf("%w: %w", ErrUnrecorded, err)
	}
	notify(g.cfg.Observer.Finished, idempotency.FinishedInfo{
		Operation: l.Key.Operation, Failure: res.Failure, Resumed: a.op.Resumed(), Took: time.Since(a.began),
	})
	return res, nil
}

// overtaken: somebody else has the key. When that one is done, its result is everybody's.
func (a *attempt) overtaken(ctx context.Context, err error) (idempotency.Result, error) {
	g, l := a.guard, a.op.lease
	var rec store.Record
	var found bool
	unread := g.record(ctx, func(ctx context.Context) (err error) {
		rec, found, err = g.store.Get(ctx, l.Key)
		return err
	})
	if unread == nil && found && rec.Fingerprint == a.op.record.Fingerprint &&
		(rec.State == idempotency.Completed || rec.State == idempotency.FailedReplayable) {
		res := rec.Result
		res.Replayed = true
		notify(g.cfg.Observer.Replayed, idempotency.ReplayedInfo{Operation: l.Key.Operation, Failure: res.Failure})
		return res, nil
	}
	g.log.Warn("a late write of a former owner was refused", "operation", l.Key.Operation, "fence", l.Fence)
	return idempotency.Result{}, err
}

// release frees the key, or only its lease. When that has no known outcome the lease will end, and recovery finds out.
func (a *attempt) release(ctx context.Context, how ending, cause error) error {
	g, l := a.guard, a.op.lease
	err := g.record(ctx, func(ctx context.Context) error {
		if how == keepPhases {
			return g.store.MarkUnknown(ctx, l, store.Reason(cause), g.cfg.RecoverAfter)
		}
		return g.store.Release(ctx, l)
	})
	if err != nil {
		g.log.Warn("a key may not be free for its next attempt", "operation", l.Key.Operation, "fence", l.Fence,
			"error", err)
		return fmt.Errorf("%w (and freeing its key failed: %w)", cause, err)
	}
	notify(g.cfg.Observer.Released, idempotency.ReleasedInfo{Operation: l.Key.Operation, Err: cause})
	return cause
}

// markUnknown leaves the operation to recovery, with its recovery points.
func (a *attempt) markUnknown(ctx context.Context, cause error) error {
	g, l := a.guard, a.op.lease
	err := g.record(ctx, func(ctx context.Context) error {
		return g.store.MarkUnknown(ctx, l, store.Reason(cause), g.cfg.RecoverAfter)
	})
	return a.unknown(cause, err == nil)
}

// unknown is what the caller of an operation is told that recovery is to end. One that is not recorded as such is found
// when its lease ends.
func (a *attempt) unknown(cause error, recorded bool) error {
	g, l := a.guard, a.op.lease
	stage := store.StageOf(a.op.Steps())
	g.log.Warn("the outcome of an operation is unknown and left to recovery", "operation", l.Key.Operation, "fence",
		l.Fence, "stage", stage,
		"error", cause, "recorded", recorded)
	notify(g.cfg.Observer.Unknown, idempotency.UnknownInfo{
		Operation: l.Key.Operation, Stage: stage, New: true,
		Err: cause,
	})
	return idempotency.OutcomeUnknown(fmt.Errorf("%w: %w", &idempotency.UnknownError{
		Stage:  stage,
		Reason: store.Reason(cause),
	}, cause))
}

// panicked records an attempt whose work did not return.
func (a *attempt) panicked(ctx context.Context) {
	err := errors.New("the work panicked")
	switch {
	case a.resume:
	case len(a.op.Steps()) > 0, a.takenOver:
		_ = a.markUnknown(ctx, err)
	default:
		_ = a.release(ctx, releaseKey, err)
	}
}
