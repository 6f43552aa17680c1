package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// CodeCompensated is the Failure of an operation that was undone although no step of it was refused.
const CodeCompensated = "compensated"

// SagaStep is a step of a saga and its compensation.
type SagaStep struct {
	// Name is stable across releases and used once in the operation. Required.
	Name string
	// Do runs the step, as in [Op.Call]. [Op.Data] has the results of earlier steps. Required.
	Do func(ctx context.Context, c Call) ([]byte, error)
	// Undo undoes the step; data is the result of Do. It may run several times with the same key, and must then undo
	// the step once. Nil: nothing to undo. After a Terminal error the operation is stuck; after others Undo is retried.
	Undo func(ctx context.Context, c Call, data []byte) error
	// Local: Do and Undo are local phases, see [Op.Local].
	Local bool
	// Key is the downstream key, as in [Op.CallAs]; empty: [StepKey]. Undo's key is derived from it.
	Key string
}

// Saga runs the steps in their order (Garcia-Molina and Salem, Sagas, 1987). If one is refused for good, the steps that
// are done are undone in reverse, and Saga returns the refusal, which the work returns with the caller's result. After
// any other error the next attempt continues: forward, or backward after an Undo was begun.
//
// Saga records each step and each Undo before and after it, and each has its own key: after a crash at any point, a
// provider that knows the keys does and undoes nothing twice.
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
		if class, _ := outcome.Of(err); class == outcome.ClassTerminal {
			return o.Compensate(ctx, steps...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Compensate undoes the steps that are done, in reverse, and returns the recorded refusal of one of them, or a Terminal
// error with [CodeCompensated]. If a step is open, it returns an OutcomeUnknown error, and recovery resolves the step.
func (o *Op) Compensate(ctx context.Context, steps ...SagaStep) error {
	cause := outcome.Terminal(CodeCompensated, errors.New("the operation was undone"))
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
			err = fmt.Errorf("the outcome of step %q is unknown: it cannot be undone yet", s.Name)
		case store.StepDone, store.StepUndoing:
			err = o.undo(ctx, s, done)
		}
		if err != nil {
			return outcome.Unknown(err)
		}
	}
	return cause
}

// undo undoes a step and records it.
func (o *Op) undo(ctx context.Context, s SagaStep, done store.Step) error {
	if s.Undo == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	retry := done.State == store.StepUndoing
	done.State = store.StepUndoing
	err := o.set(ctx, done)
	if err == nil {
		err = context.Cause(ctx) // the answer may have come after the lease
	}
	if err != nil {
		return fmt.Errorf("undo of step %q was not begun: %w", s.Name, err)
	}
	key := StepKey(o.lease.Key, "undo "+s.Name)
	if s.Key != "" {
		key = done.Key + ":undo"
	}
	err = s.Undo(ctx, Call{Key: key, Fence: o.lease.Fence, Retry: retry}, slices.Clone(done.Data))
	if class, _ := outcome.Of(err); class == outcome.ClassTerminal {
		return fmt.Errorf("%w: undo of step %q was refused: %w", ErrStuck, s.Name, err)
	}
	if err != nil {
		return fmt.Errorf("undo step %q: %w", s.Name, err)
	}
	done.State = store.StepUndone
	if err := o.set(ctx, done); err != nil {
		return fmt.Errorf("step %q is undone, and that may not be recorded: %w", s.Name, err)
	}
	return nil
}

func (o *Op) undoBegun(steps []SagaStep) bool {
	return slices.ContainsFunc(steps, func(s SagaStep) bool {
		recorded, ok := o.step(s.Name)
		return ok && (recorded.State == store.StepUndoing || recorded.State == store.StepUndone)
	})
}
