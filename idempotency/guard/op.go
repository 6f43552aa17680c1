package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Op is an operation in phases, each with a recovery point that is recorded when it is over; what a former attempt has
// recorded is returned without being run again. No transaction is open across a phase.
//
// Names of phases are stable over releases and used once in an operation. The code between the phases runs again in
// every attempt, so it only decides by what the phases gave. It is safe for concurrent use.
type Op struct {
	guard  *Guard
	lease  store.Lease
	record store.Record

	mu    sync.Mutex
	steps []store.Step    // as recorded, as far as is known here
	used  map[string]bool // names that this attempt has come to
}

// Call is what a phase is given.
type Call struct {
	// Key is the step's stable key, the same in every attempt. A call to a provider carries it, as its idempotency key
	// or as a reference by which it can be asked; a local phase puts it under a unique constraint.
	Key string
	// Fence rises with every owner of the operation: an effect that keeps the highest can refuse a late one.
	Fence int64
	// Again: an earlier attempt has begun it and recorded no outcome. A provider that takes two calls with one key for
	// two must be asked first. Of a local phase nobody knows, and it is false.
	Again bool
}

func newOp(g *Guard, c store.ClaimResult) *Op {
	return &Op{
		guard: g, lease: c.Lease, record: c.Record, steps: c.Record.Progress.Clone().Steps,
		used: map[string]bool{},
	}
}

// Record is what was known of the operation when this attempt began, its input included.
func (o *Op) Record() store.Record { return o.record }

// Fence is the number of this owner of the key.
func (o *Op) Fence() int64 { return o.lease.Fence }

// Resumed tells whether a former attempt has left recovery points.
func (o *Op) Resumed() bool { return len(o.record.Progress.Steps) > 0 }

// Steps are the recovery points until now.
func (o *Op) Steps() []store.Step {
	o.mu.Lock()
	defer o.mu.Unlock()
	return store.Progress{Steps: o.steps}.Clone().Steps
}

// Data is what a step gave that is done, in this attempt or a former one; false when it is not.
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

// Local runs a local phase, normally one transaction, and records what it gave. A crash between the two runs it again
// in the next attempt: what it inserts stands behind a unique constraint on the key that it is given, and it finds what
// is there.
//
// Terminal is recorded: the phase is not run again. Any other error leaves it to the next attempt; of the first phase,
// an error that may have come after its COMMIT must be [idempotency.OutcomeUnknown], or the key is freed with it.
func (o *Op) Local(ctx context.Context, name string, do func(ctx context.Context, c Call) ([]byte, error)) ([]byte,
	error,
) {
	s, known, err := o.start(ctx, name)
	if err != nil || known {
		return s.Data, err
	}
	data, err := do(ctx, Call{Key: StepKey(o.lease.Key, name), Fence: o.lease.Fence})
	class, code := idempotency.Classify(err)
	switch {
	case err == nil:
		return data, o.set(ctx, store.Step{Name: name, State: store.StepDone, Data: data})
	case class == idempotency.ClassTerminal:
		return nil, errors.Join(err, o.set(ctx, refusal(store.Step{Name: name}, code, err)))
	}
	return nil, err
}

// Call calls a provider. That it is about to is recorded before, and its answer after. The provider gets a key of
// [StepKey], so a call that is made again is the same one for it.
//
// What an error of do means: [idempotency.Terminal] is a refusal for good, recorded and returned to every later
// attempt; [idempotency.Retryable] says that certainly nothing has happened; every other one that the outcome is open,
// and it comes back as [idempotency.OutcomeUnknown].
func (o *Op) Call(ctx context.Context, name string, do func(ctx context.Context, c Call) ([]byte, error)) ([]byte,
	error,
) {
	return o.CallAs(ctx, name, StepKey(o.lease.Key, name), do)
}

// CallAs is Call with a downstream key of the caller's, made of an id of the operation's own that an earlier phase
// recorded: "provider_payment_<payment id>". A step that was begun keeps the key that it began with.
func (o *Op) CallAs(ctx context.Context, name, key string, do func(ctx context.Context, c Call) ([]byte, error)) (
	[]byte, error,
) {
	if key == "" {
		return nil, fmt.Errorf("idempotency: step %q needs a key to go downstream", name)
	}
	s, known, err := o.start(ctx, name)
	if err != nil || known {
		return s.Data, err
	}
	before := s.State == store.StepSent
	if !before {
		s = store.Step{Name: name, State: store.StepSent, Key: key}
		if err := o.set(ctx, s); err != nil || ctx.Err() != nil {
			o.drop(name)
			if err == nil {
				err = errors.Join(context.Cause(ctx), o.save(ctx))
			}
			return nil, idempotency.Retryable(fmt.Errorf("idempotency: step %q was not begun: %w", name, err))
		}
	}
	data, err := do(ctx, Call{Key: s.Key, Fence: o.lease.Fence, Again: before})
	class, code := idempotency.Classify(err)
	switch {
	case err == nil:
		s.State, s.Data = store.StepDone, data
		if err := o.set(ctx, s); err != nil {
			return nil, idempotency.OutcomeUnknown(fmt.Errorf("idempotency: step %q is done, and recording it has no "+
				"known outcome: %w", name, err))
		}
		return data, nil
	case class == idempotency.ClassTerminal:
		return nil, errors.Join(err, o.set(ctx, refusal(s, code, err)))
	case class == idempotency.ClassRetryable && !before:
		o.drop(name)
		return nil, errors.Join(err, o.save(ctx))
	}
	return nil, idempotency.OutcomeUnknown(fmt.Errorf("step %q: %w", name, err))
}

// Resolve records what somebody has found out of a step whose outcome was open: StepDone with what it gave, StepFailed
// with a code and a reason as [Refusal] makes them, or nothing (the empty state): it certainly did not happen, and
// nothing that is under way can still make it happen.
func (o *Op) Resolve(ctx context.Context, name string, to store.StepState, data []byte) error {
	s, ok := o.step(name)
	if !ok {
		return fmt.Errorf("idempotency: there is no step %q", name)
	}
	switch to {
	case store.StepDone, store.StepFailed:
		s.State, s.Data = to, data
		return o.set(ctx, s)
	case "":
		o.drop(name)
		return o.save(ctx)
	}
	return fmt.Errorf("idempotency: step %q cannot be resolved as %q: StepDone, StepFailed or nothing", name, to)
}

// start takes a name for a step, and returns what is recorded of it. known: its outcome is recorded, and returned.
func (o *Op) start(ctx context.Context, name string) (s store.Step, known bool, err error) {
	if ctx.Err() != nil {
		return s, false, idempotency.Retryable(fmt.Errorf("idempotency: step %q was not begun: %w", name,
			context.Cause(ctx)))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.used[name] {
		return s, false, fmt.Errorf("idempotency: the name %q is used for two steps", name)
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
	return store.Step{}, false, fmt.Errorf("idempotency: step %q is being compensated: only its saga goes on", name)
}

// set records a step, in its place or as the last one.
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

// save writes all steps. One at a time, so that an older list does not come after a newer one.
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

// Refusal is the data of a step that was refused for good.
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

// refusalError is the error of a step that failed in an earlier attempt.
func refusalError(s store.Step) error {
	var w refusalData
	if err := json.Unmarshal(s.Data, &w); err != nil {
		return idempotency.Terminal("failed", fmt.Errorf("step %q was refused", s.Name))
	}
	return idempotency.Terminal(w.Code, errors.New(w.Error))
}
