package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// Op is an operation in phases, each with a recovery point that is recorded after it. A phase that an earlier attempt
// recorded is not run again: its result is returned. No transaction is open across a phase.
//
// Names of phases are stable across releases and used once in an operation. The code between phases runs in every
// attempt, so it must depend on the results of phases alone. An Op is safe for concurrent use.
type Op struct {
	guard  *Guard
	lease  store.Lease
	record store.Record

	mu    sync.Mutex
	steps []store.Step    // as this attempt last recorded them
	used  map[string]bool // names of this attempt's phases
}

// Call is the argument of a phase.
type Call struct {
	// Key is the step's key, the same in every attempt. A call passes it to the provider, as idempotency key or as a
	// reference for queries; a local phase stores it under a unique constraint.
	Key string
	// Fence rises with every owner of the operation: an effect that keeps the highest one can refuse earlier owners.
	Fence int64
	// Retry: an earlier attempt began the call and recorded no outcome. A provider that treats two calls with one key
	// as two must be asked first. False for local phases.
	Retry bool
}

func newOp(g *Guard, c store.ClaimResult) *Op {
	return &Op{
		guard: g, lease: c.Lease, record: c.Record, steps: c.Record.Progress.Clone().Steps,
		used: map[string]bool{},
	}
}

// Record returns the operation's record, with its input, as it was when this attempt began.
func (o *Op) Record() store.Record { return o.record }

// Fence returns the fence of this owner.
func (o *Op) Fence() int64 { return o.lease.Fence }

// Resumed reports whether an earlier attempt has recorded recovery points.
func (o *Op) Resumed() bool { return len(o.record.Progress.Steps) > 0 }

// Steps returns the recovery points so far.
func (o *Op) Steps() []store.Step {
	o.mu.Lock()
	defer o.mu.Unlock()
	return store.Progress{Steps: o.steps}.Clone().Steps
}

// Data returns the result of a step, of this attempt or an earlier one; false if it is not done.
func (o *Op) Data(name string) ([]byte, bool) {
	s, ok := o.step(name)
	return slices.Clone(s.Data), ok && s.State == store.StepDone
}

func (o *Op) step(name string) (store.Step, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := slices.IndexFunc(o.steps, func(s store.Step) bool { return s.Name == name })
	if i < 0 {
		return store.Step{}, false
	}
	return o.steps[i], true
}

// Local runs a local phase, normally one transaction, and records its result. After a crash between the two, the next
// attempt runs it again: put a unique constraint on Call.Key, and return the row if it exists.
//
// A Terminal error is recorded, and the phase is not run again. After any other error the next attempt runs it again.
// In the first phase, the key is released after an error by which certainly nothing was committed, see [Guard.Do].
func (o *Op) Local(ctx context.Context, name string, do func(ctx context.Context, c Call) ([]byte, error)) ([]byte,
	error,
) {
	s, known, err := o.start(ctx, name)
	if err != nil || known {
		return s.Data, err
	}
	data, err := do(ctx, Call{Key: StepKey(o.lease.Key, name), Fence: o.lease.Fence})
	class, code := outcome.Of(err)
	switch {
	case err == nil:
		return data, o.set(ctx, store.Step{Name: name, State: store.StepDone, Data: data})
	case class == outcome.ClassTerminal:
		return nil, errors.Join(err, o.set(ctx, refusal(store.Step{Name: name}, code, err)))
	}
	return nil, err
}

// Call calls a provider. It records the step before the call, also before a repeated one, and the answer after it: an
// owner that has lost the operation does not call. The provider gets the key of [StepKey], so a repeated call has the
// same key.
//
// Errors of do: [outcome.Terminal] is a final refusal, recorded and returned to every later attempt; after
// [outcome.Retryable] certainly nothing has happened; after every other error the outcome is unknown, and Call
// returns [outcome.Unknown].
func (o *Op) Call(ctx context.Context, name string, do func(ctx context.Context, c Call) ([]byte, error)) ([]byte,
	error,
) {
	return o.CallAs(ctx, name, StepKey(o.lease.Key, name), do)
}

// CallAs is Call with the given downstream key, normally with an id that an earlier phase recorded:
// "provider_payment_<payment id>". A step that was begun keeps its key.
func (o *Op) CallAs(ctx context.Context, name, key string, do func(ctx context.Context, c Call) ([]byte, error)) (
	[]byte, error,
) {
	if key == "" {
		return nil, fmt.Errorf("idempotency: step %q needs a downstream key", name)
	}
	s, known, err := o.start(ctx, name)
	if err != nil || known {
		return s.Data, err
	}
	retry := s.State == store.StepSent
	if !retry {
		s = store.Step{Name: name, State: store.StepSent, Key: key}
	}
	err = o.set(ctx, s)
	saved := err == nil
	if saved {
		err = context.Cause(ctx)
	}
	if err != nil {
		if !retry {
			o.drop(name)
			if saved {
				err = errors.Join(err, o.save(ctx))
			}
		}
		return nil, outcome.Retryable(fmt.Errorf("idempotency: step %q was not begun: %w", name, err))
	}
	data, err := do(ctx, Call{Key: s.Key, Fence: o.lease.Fence, Retry: retry})
	class, code := outcome.Of(err)
	switch {
	case err == nil:
		s.State, s.Data = store.StepDone, data
		if err := o.set(ctx, s); err != nil {
			return nil, outcome.Unknown(fmt.Errorf("idempotency: step %q is done, and may not be recorded: "+
				"%w", name, err))
		}
		return data, nil
	case class == outcome.ClassTerminal:
		return nil, errors.Join(err, o.set(ctx, refusal(s, code, err)))
	case class == outcome.ClassRetryable && !retry:
		o.drop(name)
		return nil, errors.Join(err, o.save(ctx))
	}
	return nil, outcome.Unknown(fmt.Errorf("step %q: %w", name, err))
}

// Resolve records the outcome of an open step: StepDone with its result, StepFailed with the data of [Refusal], or the
// empty state if it certainly did not happen, and no request in flight can still do it.
func (o *Op) Resolve(ctx context.Context, name string, state store.StepState, data []byte) error {
	s, ok := o.step(name)
	if !ok {
		return fmt.Errorf("idempotency: there is no step %q", name)
	}
	switch state {
	case store.StepDone, store.StepFailed:
		s.State, s.Data = state, data
		return o.set(ctx, s)
	case "":
		o.drop(name)
		return o.save(ctx)
	}
	return fmt.Errorf("idempotency: step %q cannot be resolved as %q: want StepDone, StepFailed or "+
		"empty", name, state)
}

// start begins a step, and returns its record. known: its outcome is recorded, and returned.
func (o *Op) start(ctx context.Context, name string) (s store.Step, known bool, err error) {
	if ctx.Err() != nil {
		return s, false, outcome.Retryable(fmt.Errorf("idempotency: step %q was not begun: %w", name,
			context.Cause(ctx)))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.used[name] {
		return s, false, fmt.Errorf("idempotency: two steps have the name %q", name)
	}
	o.used[name] = true
	i := slices.IndexFunc(o.steps, func(s store.Step) bool { return s.Name == name })
	if i < 0 {
		return s, false, nil
	}
	switch s = o.steps[i]; s.State {
	case store.StepSent:
		return s, false, nil
	case store.StepDone:
		return s, true, nil
	case store.StepFailed:
		return store.Step{}, true, refusalError(s)
	}
	return store.Step{}, false, fmt.Errorf("idempotency: step %q is being compensated: only its saga can continue",
		name)
}

// set replaces or appends a step, and saves.
func (o *Op) set(ctx context.Context, s store.Step) error {
	o.mu.Lock()
	if i := slices.IndexFunc(o.steps, func(old store.Step) bool { return old.Name == s.Name }); i >= 0 {
		o.steps[i] = s
	} else {
		o.steps = append(o.steps, s)
	}
	o.mu.Unlock()
	return o.save(ctx)
}

func (o *Op) drop(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps = slices.DeleteFunc(o.steps, func(s store.Step) bool { return s.Name == name })
}

// save writes all steps, one save at a time, so that an older list cannot replace a newer one.
func (o *Op) save(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := store.Progress{Stage: store.StageOf(o.steps), Steps: o.steps}.Clone()
	return o.guard.record(ctx, func(ctx context.Context) error { return o.guard.store.Save(ctx, o.lease, p) })
}

// refusalData is the data of a failed step.
type refusalData struct {
	Code  string `json:"code"`
	Error string `json:"error,omitempty"`
}

// Refusal returns the data of a step that was refused for good.
func Refusal(code, text string) []byte {
	b, err := json.Marshal(refusalData{code, text})
	if err != nil {
		return nil
	}
	return b
}

func refusal(s store.Step, code string, err error) store.Step {
	s.State, s.Data = store.StepFailed, Refusal(code, store.Reason(err))
	return s
}

// refusalError returns the error of a step that failed in an earlier attempt.
func refusalError(s store.Step) error {
	var r refusalData
	if err := json.Unmarshal(s.Data, &r); err != nil {
		return outcome.Terminal("failed", fmt.Errorf("step %q was refused", s.Name))
	}
	return outcome.Terminal(r.Code, errors.New(r.Error))
}
