package recovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/store"
)

var (
	// errFree: nothing has happened, and nobody here can do it: the key is the caller's again.
	errFree = errors.New("nothing has happened")
	// errCallers: local phases are committed, and freeing the key would give them to another command.
	errCallers = errors.New("only its caller's next attempt can go on: its handler has neither Resume nor Compensate")
	// errNotYet: to be asked again.
	errNotYet = errors.New("nobody knows yet")
)

// try is the work at one operation.
type try struct {
	handler Handler
	undone  bool // it was taken back
}

// safely is work, of which a panic is an error: one operation must not stop the others.
func (t *try) safely(ctx context.Context, op *guard.Op) (res idempotency.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			// Its value may be what the operation is about, and this goes into the log and the store.
			err = idempotency.OutcomeUnknown(fmt.Errorf("the handler panicked with a %T", p))
		}
	}()
	return t.work(ctx, op)
}

// work finds out what happened, and then goes on from there.
func (t *try) work(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	h, rec := t.handler, op.Record()
	if len(op.Steps()) == 0 && h.Local != nil {
		fact, res, err := h.Local(ctx, rec)
		switch {
		case err != nil:
			return res, fmt.Errorf("looking up the local effect: %w", err)
		case fact == Happened:
			return res, nil
		case fact == NotYet:
			return res, errNotYet
		case h.Resume == nil:
			return res, errFree
		}
	}
	for _, s := range op.Steps() {
		if s.State != store.StepSent {
			continue
		}
		if err := t.ask(ctx, op, s); err != nil {
			return idempotency.Result{}, err
		}
	}
	forward := h.ForwardFor == nil || h.ForwardFor(rec)
	switch {
	case h.Resume != nil && (forward || h.Compensate == nil):
		return h.Resume(ctx, op)
	case len(op.Steps()) > 0 && store.StageOf(op.Steps()) == idempotency.LocalCreated && h.Compensate == nil:
		return idempotency.Result{}, errCallers
	case len(op.Steps()) == 0 && len(rec.Progress.Steps) > 0:
		return idempotency.Result{}, errFree
	case h.Compensate != nil:
		t.undone = true
		return h.Compensate(ctx, op)
	}
	return idempotency.Result{}, fmt.Errorf("%w: its handler can neither go on with it nor undo it", guard.ErrStuck)
}

// ask finds out about one step whose outcome is open, and records the answer. No error: it is settled, or may be called
// again.
func (t *try) ask(ctx context.Context, op *guard.Op, s store.Step) error {
	if t.handler.Probe == nil {
		if t.handler.SameKey {
			return nil
		}
		return fmt.Errorf("%w: step %q may have happened, and its provider can neither be asked nor called again",
			guard.ErrStuck, s.Name)
	}
	a, err := t.handler.Probe(ctx, Question{Record: op.Record(), Step: s.Name, Key: s.Key, Fence: op.Fence()})
	if err != nil {
		return fmt.Errorf("asking about step %q: %w", s.Name, err)
	}
	switch a.Fact {
	case Happened:
		return op.Resolve(ctx, s.Name, store.StepDone, a.Data)
	case Refused:
		return op.Resolve(ctx, s.Name, store.StepFailed, guard.Refusal(a.Code, a.Text))
	case DidNot:
		return op.Resolve(ctx, s.Name, "", nil)
	}
	return fmt.Errorf("step %q: %w", s.Name, errNotYet)
}
