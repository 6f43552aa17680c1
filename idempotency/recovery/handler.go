package recovery

import (
	"context"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Handler finds out the outcome of an operation, and finishes it.
type Handler struct {
	// Probe asks the provider about an open step. Nil: the provider cannot be asked; see IdempotentProvider.
	Probe Probe
	// IdempotentProvider: every provider treats a second call with the same key as the first one, also after a final
	// refusal, for longer than an operation can wait here. Without a Probe, Resume then calls again. If it is set for
	// another provider, effects happen twice.
	IdempotentProvider bool
	// ProbeLocal looks up in the service's own database whether work without recovery points, as [guard.Guard.Do] runs
	// it, was committed: Happened with the result, or NotHappened, which releases the key unless there is a Resume. It
	// is called only for operations without a recorded step. Nil: such an operation is stuck, unless Rerun is set.
	ProbeLocal func(ctx context.Context, rec store.Record) (ProbeOutcome, idempotency.Result, error)
	// Rerun: Resume or Compensate is harmless although work without a recorded step may have had its effect. It is for
	// work of [guard.Guard.Run] whose first local phase has a unique constraint on its key, or no effect. A wrong entry
	// makes an effect happen twice.
	Rerun bool
	// Resume continues the work: normally the function given to [guard.Guard.Run], with its input in
	// op.Record().Input. Done steps are not run again, the others keep their keys. Nil: an operation is released if
	// nothing was done, compensated if there is a Compensate, left to its caller if only local phases were done, and
	// stuck in the end.
	Resume func(ctx context.Context, op *guard.Op) (idempotency.Result, error)
	// Compensate undoes the work, normally by [guard.Op.Compensate], and returns its error with the caller's result. It
	// is used if Resume is nil or MayResume returns false.
	Compensate func(ctx context.Context, op *guard.Op) (idempotency.Result, error)
	// MayResume reports whether to resume rather than compensate; nil: always. A saga whose compensation has begun is
	// never resumed.
	MayResume func(rec store.Record) bool
}

// Probe asks a provider for the outcome of a step. It must not change anything there. After an error, as after
// Undetermined, the worker asks again later.
type Probe func(ctx context.Context, r ProbeRequest) (ProbeResult, error)

// ProbeRequest identifies the step.
type ProbeRequest struct {
	// Record is the operation, with its input.
	Record store.Record
	// Step is the step's name, Key its downstream key.
	Step, Key string
	// Fence is the worker's: a provider that keeps the highest one can refuse earlier owners.
	Fence int64
}

// ProbeOutcome is the outcome of a step as its provider knows it.
type ProbeOutcome int

const (
	// Undetermined: not known yet. It is the zero value, so an empty result asserts nothing.
	Undetermined ProbeOutcome = iota
	// Happened: the step was done; ProbeResult.Data is its result.
	Happened
	// NotHappened: the step was not done, and no request in flight can do it. If a provider treats two calls with one
	// key as two, wait for its longest timeout before you return this.
	NotHappened
	// Refused: the step was refused for good, with ProbeResult.Code.
	Refused
)

// ProbeResult is a provider's answer about a step.
type ProbeResult struct {
	Outcome ProbeOutcome
	// Data is the result of a step that happened.
	Data []byte
	// Code and Text of a refusal: as in [outcome.Terminal].
	Code, Text string
}

// Outcome is the outcome of a worker's attempt at an operation.
type Outcome string

const (
	// Completed: the operation has a result.
	Completed Outcome = "completed"
	// Failed: the operation has a final refusal.
	Failed Outcome = "failed"
	// Compensated: the operation was undone, and its refusal says so.
	Compensated Outcome = "compensated"
	// Released: nothing had happened, and the key was released.
	Released Outcome = "released"
	// Postponed: the outcome is still unknown; another attempt follows.
	Postponed Outcome = "postponed"
	// Stuck: recovery gave up; a person must resolve the operation.
	Stuck Outcome = "stuck"
	// Lost: another worker or caller has the operation, or the store failed: this attempt changed nothing more.
	Lost Outcome = "lost"
)
