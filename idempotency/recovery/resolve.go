package recovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

var (
	// errNothingDone: the key is released.
	errNothingDone = errors.New("nothing has happened")
	// errCallerOnly: local phases are committed, and after a release another command could continue them.
	errCallerOnly = errors.New("only the caller's next attempt can continue: the handler has neither Resume nor " +
		"Compensate")
	errUndetermined = errors.New("the outcome is not known yet")
)

// resolution is a worker's attempt at an operation.
type resolution struct {
	handler     Handler
	compensated bool
}

// recoverPanics runs resolve and returns a panic as an error, so that one operation does not stop the others.
func (r *resolution) recoverPanics(ctx context.Context, op *guard.Op) (res idempotency.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			// Not its value, which may be sensitive: the error goes into the log and the store.
			err = outcome.Unknown(fmt.Errorf("the handler panicked with a %T", p))
		}
	}()
	return r.resolve(ctx, op)
}

// resolve finds out the outcomes of open steps, and then finishes the operation.
func (r *resolution) resolve(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	h, rec := r.handler, op.Record()
	switch {
	case len(op.Steps()) > 0:
	case h.ProbeLocal != nil:
		outcome, res, err := h.ProbeLocal(ctx, rec)
		switch {
		case err != nil:
			return res, fmt.Errorf("look up the local effect: %w", err)
		case outcome == Happened:
			return res, nil
		case outcome == Undetermined:
			return res, errUndetermined
		case h.Resume == nil:
			return res, errNothingDone
		}
	case !h.Rerun:
		return idempotency.Result{}, fmt.Errorf("%w: its work may have had an effect before its first recovery point, "+
			"and its handler has no ProbeLocal", guard.ErrStuck)
	}
	for _, s := range op.Steps() {
		if s.State != store.StepSent {
			continue
		}
		if err := r.probe(ctx, op, s); err != nil {
			return idempotency.Result{}, err
		}
	}
	mayResume := h.MayResume == nil || h.MayResume(rec)
	switch {
	case h.Resume != nil && (mayResume || h.Compensate == nil):
		return h.Resume(ctx, op)
	case len(op.Steps()) > 0 && store.StageOf(op.Steps()) == idempotency.LocalCreated && h.Compensate == nil:
		return idempotency.Result{}, errCallerOnly
	case len(op.Steps()) == 0 && len(rec.Progress.Steps) > 0:
		return idempotency.Result{}, errNothingDone
	case h.Compensate != nil:
		r.compensated = true
		return h.Compensate(ctx, op)
	}
	return idempotency.Result{}, fmt.Errorf("%w: its handler can neither resume nor compensate it", guard.ErrStuck)
}

// probe asks for the outcome of an open step, and records the answer. Without an error the outcome is recorded, or the
// step may be called again.
func (r *resolution) probe(ctx context.Context, op *guard.Op, s store.Step) error {
	if r.handler.Probe == nil {
		if r.handler.IdempotentProvider {
			return nil
		}
		return fmt.Errorf("%w: step %q may have happened, and its provider can be neither asked nor called again",
			guard.ErrStuck, s.Name)
	}
	res, err := r.handler.Probe(ctx, ProbeRequest{Record: op.Record(), Step: s.Name, Key: s.Key, Fence: op.Fence()})
	if err != nil {
		return fmt.Errorf("probe step %q: %w", s.Name, err)
	}
	switch res.Outcome {
	case Happened:
		return op.Resolve(ctx, s.Name, store.StepDone, res.Data)
	case Refused:
		return op.Resolve(ctx, s.Name, store.StepFailed, guard.Refusal(res.Code, res.Text))
	case NotHappened:
		return op.Resolve(ctx, s.Name, "", nil)
	}
	return fmt.Errorf("step %q: %w", s.Name, errUndetermined)
}
