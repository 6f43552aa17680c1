package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/outcome"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// attempt is a run of the work by the owner of a key.
type attempt struct {
	guard *Guard
	op    *Op
	began time.Time
	// resume: a recoverer holds the key, and handles an operation that does not finish.
	resume bool
	// takenOver: the key may have had another owner, which may have committed, so a failure does not release it.
	takenOver bool
}

// work runs the work under the lease and records its outcome, also after a panic or runtime.Goexit, which then
// continue.
func (g *Guard) work(ctx context.Context, a *attempt, do work) (res idempotency.Result, err error) {
	ctx, h := g.startHeartbeat(ctx, a.op.lease, a.began)
	defer h.stop()
	returned := false
	defer func() {
		if !returned {
			h.workDone.Store(true)
			a.recordPanic(ctx)
		}
	}()
	res, err = do(ctx, a.op)
	returned = true
	h.workDone.Store(true)
	return a.recordOutcome(ctx, res, err)
}

// ending is the outcome of an attempt.
type ending int

const (
	finished ending = iota
	nothingDone
	phasesDone // local phases are committed: the next attempt continues from there
	unknown
)

// classify returns the outcome for an error of the work, see Do and Run.
func (a *attempt) classify(ctx context.Context, err error) (o ending, code string) {
	steps := a.op.Steps()
	_, isOpen := openStep(steps)
	class, code := outcome.Of(err)
	if class == outcome.Unclassified && err != nil && a.guard.cfg.Classify != nil {
		class = a.guard.cfg.Classify(err)
	}
	switch {
	case err == nil && !isOpen:
		return finished, ""
	case class == outcome.ClassTerminal && !isOpen:
		return finished, cmp.Or(code, "failed")
	case err == nil, class == outcome.ClassTerminal, class == outcome.ClassUnknown, called(steps):
		return unknown, ""
	case class == outcome.Unclassified && (len(steps) == 0 || ctx.Err() != nil): // it may have committed
		return unknown, ""
	case len(steps) > 0:
		return phasesDone, ""
	case a.takenOver:
		return unknown, ""
	}
	return nothingDone, ""
}

// recordOutcome records the outcome of the work, and returns its caller's answer.
func (a *attempt) recordOutcome(ctx context.Context, res idempotency.Result, err error) (idempotency.Result, error) {
	o, code := a.classify(ctx, err)
	if o == finished {
		res.Failure = cmp.Or(res.Failure, code)
		if invalid := res.Check(); invalid != nil {
			// After a success the effect is there.
			if res, err = (idempotency.Result{}), outcome.Retryable(invalid); code == "" {
				err = outcome.Unknown(invalid)
			}
			o, _ = a.classify(ctx, err)
		}
	}
	if errors.Is(err, store.ErrLeaseLost) && o != finished {
		return a.answerOfOther(ctx, err)
	}
	if step, isOpen := openStep(a.op.Steps()); isOpen && o == unknown {
		err = outcome.Unknown(errors.Join(fmt.Errorf("the outcome of step %q is unknown", step.Name), err))
	}
	switch {
	case o == finished:
		return a.finish(ctx, res)
	case a.resume:
		return idempotency.Result{}, err
	case o == nothingDone, o == phasesDone:
		return idempotency.Result{}, a.release(ctx, o, err)
	}
	return idempotency.Result{}, a.markUnknown(ctx, err)
}

// record repeats a write until its outcome is known or RecordTimeout is over, also after the end of the caller's
// context.
func (g *Guard) record(ctx context.Context, write func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(g.cfg.RecordTimeout, time.Millisecond))
	defer cancel()
	return retry(ctx, g.cfg.RecordTimeout, func() error { return write(ctx) })
}

func (a *attempt) finish(ctx context.Context, res idempotency.Result) (idempotency.Result, error) {
	g, l := a.guard, a.op.lease
	res.Replayed = false
	err := g.record(ctx, func(ctx context.Context) error { return g.store.Finish(ctx, l, res, a.op.record.Keep) })
	switch {
	case errors.Is(err, store.ErrLeaseLost):
		return a.answerOfOther(ctx, fmt.Errorf("idempotency: record the result: %w", err))
	case err != nil && res.Failure != "": // the next attempt may succeed
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

// answerOfOther returns the result of the owner that has the key now, if it is done, else err.
func (a *attempt) answerOfOther(ctx context.Context, err error) (idempotency.Result, error) {
	g, l := a.guard, a.op.lease
	var rec store.Record
	var found bool
	readErr := g.record(ctx, func(ctx context.Context) (err error) {
		rec, found, err = g.store.Get(ctx, l.Key)
		return err
	})
	if readErr == nil && found && rec.Fingerprint == a.op.record.Fingerprint &&
		(rec.State == idempotency.Completed || rec.State == idempotency.FailedReplayable) {
		res := rec.Result
		res.Replayed = true
		notify(g.cfg.Observer.Replayed, idempotency.ReplayedInfo{Operation: l.Key.Operation, Failure: res.Failure})
		return res, nil
	}
	g.log.Warn("a late write of an earlier owner was refused", "operation", l.Key.Operation, "fence", l.Fence)
	return idempotency.Result{}, err
}

// release releases the key, or after a local phase only its lease. If that fails, the lease ends, and recovery follows.
func (a *attempt) release(ctx context.Context, o ending, cause error) error {
	g, l := a.guard, a.op.lease
	err := g.record(ctx, func(ctx context.Context) error {
		if o == phasesDone {
			return g.store.MarkUnknown(ctx, l, store.Reason(cause), g.cfg.RecoverAfter)
		}
		return g.store.Release(ctx, l)
	})
	if err != nil {
		g.log.Warn("a key may not be released for its next attempt", "operation", l.Key.Operation, "fence", l.Fence,
			"error", err)
		return fmt.Errorf("%w (and releasing its key failed: %w)", cause, err)
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

// unknown returns the caller's error for an unknown outcome. If that is not recorded, recovery finds the operation
// after the end of its lease.
func (a *attempt) unknown(cause error, recorded bool) error {
	g, l := a.guard, a.op.lease
	stage := store.StageOf(a.op.Steps())
	g.log.Warn("the outcome of an operation is unknown, and left to recovery", "operation", l.Key.Operation, "fence",
		l.Fence, "stage", stage,
		"error", cause, "recorded", recorded)
	notify(g.cfg.Observer.Unknown, idempotency.UnknownInfo{
		Operation: l.Key.Operation, Stage: stage, New: true,
		Err: cause,
	})
	return outcome.Unknown(fmt.Errorf("%w: %w", &idempotency.UnknownError{
		Stage:  stage,
		Reason: store.Reason(cause),
	}, cause))
}

// recordPanic records an attempt whose work did not return.
func (a *attempt) recordPanic(ctx context.Context) {
	if !a.resume {
		_ = a.markUnknown(ctx, errors.New("the work panicked"))
	}
}
