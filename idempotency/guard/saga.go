package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// CodeCompensated is the Failure of an operation that was undone although no step of it was refused.
const CodeCompensated = "compensated"

// SagaStep is one step of a saga, and what undoes it.
type SagaStep struct {
	// Name is stable over releases and used once in the operation. Required.
	Name string
	// Do makes the step, as in [Op.Call]. What an earlier step gave is in [Op.Data]. Required.
	Do func(ctx context.Context, c Call) ([]byte, error)
	// Undo takes it back; data is what Do gave. It may run several times with the same key, and must then take it back
	// once. Nil: there is nothing to take back. A Terminal error of it leaves the operation to a person; every other
	// one is tried again.
	Undo func(ctx context.Context, c Call, data []byte) error
	// Local says that Do and Undo are local phases: see [Op.Local].
	Local bool
	// Key goes downstream, as in [Op.CallAs]; empty: [StepKey]. That of Undo is derived from it.
	Key string
}

// Saga makes the steps in their order (Garcia-Molina and Salem, Sagas, 1987). When one is refused for good, those that
// are done are undone in reverse, and the refusal is returned: the work returns it on, beside what its caller is to be
// told, and it is recorded. Any other error stops the saga where it is, and the next attempt goes on there: forward, or
// back once an Undo was begun.
//
// What the saga has done is recorded before and after each step, and each step and each Undo has its own stable key:
// after a crash at any point, nothing is done or undone twice by a provider that knows the key.
func (o *Op) Saga(ctx context.Context, steps ...SagaStep) error {
	if o.undoBegun(steps) {
		return o.Compensate(ctx, steps...)
	}
	for _, s := range steps {
		var err error
		switch {
		case s.Local:
			_, err = o.Local(ctx, s.Name, s.Do)
		case s.Key != "":
			_, err = o.CallAs(ctx, s.Name, s.Key, s.Do)
		default:
			_, err = o.Call(ctx, s.Name, s.Do)
		}
		if class, _ := idempotency.Classify(err); class == idempotency.ClassTerminal {
			return o.Compensate(ctx, steps...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Compensate undoes what is done of the steps, in reverse, and returns the refusal that is recorded of one of them, or
// a Terminal error with [CodeCompensated]. It needs to know what was done: an error that says which step's outcome is
// open leaves the operation to recovery.
func (o *Op) Compensate(ctx context.Context, steps ...SagaStep) error {
	cause := idempotency.Terminal(CodeCompensated, errors.New("the operation was undone"))
	for _, s := range slices.Backward(steps) {
		done, ok := o.step(s.Name)
		if !ok {
			continue
		}
		var err error
		switch done.State {
		case store.StepFailed:
			cause = refusalError(done)
		case store.StepSent:
			err = fmt.Errorf("nothing is undone while the outcome of step %q is open", s.Name)
		case store.StepDone, store.StepUndoing:
			err = o.undo(ctx, s, done)
		}
		if err != nil {
			return idempotency.OutcomeUnknown(err)
		}
	}
	return cause
}

// undo takes one step back and records it.
func (o *Op) undo(ctx context.Context, s SagaStep, done store.Step) error {
	if s.Undo == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	before := done.State == store.StepUndoing
	if !before {
		done.State = store.StepUndoing
		if err := o.set(ctx, done); err != nil {
			return fmt.Errorf("undoing step %q was not begun: %w", s.Name, err)
		}
	}
	key := StepKey(o.lease.Key, "undo "+s.Name)
	if s.Key != "" {
		key = done.Key + ":undo"
	}
	err := s.Undo(ctx, Call{Key: key, Fence: o.lease.Fence, Again: before}, slices.Clone(done.Data))
	if class, _ := idempotency.Classify(err); class == idempotency.ClassTerminal {
		return fmt.Errorf("%w: undoing step %q was refused: %w", ErrStuck, s.Name, err)
	}
	if err != nil {
		return fmt.Errorf("undoing step %q: %w", s.Name, err)
	}
	done.State = store.StepUndone
	if err := o.set(ctx, done); err != nil {
		return fmt.Errorf("step %q is undone, and recording that has no known outcome: %w", s.Name, err)
	}
	return nil
}

func (o *Op) undoBegun(steps []SagaStep) bool {
	return slices.ContainsFunc(steps, func(s SagaStep) bool {
		was, ok := o.step(s.Name)
		return ok && (was.State == store.StepUndoing || was.State == store.StepUndone)
	})
}
