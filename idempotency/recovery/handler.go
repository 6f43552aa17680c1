package recovery

import (
	"context"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Handler knows how to find out about one operation, and how to end it.
type Handler struct {
	// Probe asks the provider about a step whose outcome is open. Nil: it cannot be asked; see SameKey.
	Probe Probe
	// SameKey says that the providers take a second call with the same key for the first one, for longer than an
	// operation can wait here: without a Probe, Resume then simply calls again. Wrong, and an effect happens twice.
	SameKey bool
	// Local looks up in the service's own database whether work without recovery points, as [guard.Guard.Do] runs it,
	// was committed: Happened with the result, or DidNot, which frees the key unless there is a Resume. It is only
	// asked of operations that recorded no step. Nil: such an operation is resumed, or given to a person.
	Local func(ctx context.Context, rec store.Record) (Fact, idempotency.Result, error)
	// Resume goes on with the work: normally the function that [guard.Guard.Run] was given, which finds its input in
	// op.Record().Input. Done steps are not run again, the others keep their keys. Nil: an operation is freed when
	// nothing was done, compensated when there is a Compensate, left to its caller when only local phases were done,
	// and given to a person in the end.
	Resume func(ctx context.Context, op *guard.Op) (idempotency.Result, error)
	// Compensate undoes what was done, normally by [guard.Op.Compensate], whose error it returns beside what the caller
	// is to be told. It is used instead of Resume when that is nil, or the operation is older than ForwardFor.
	Compensate func(ctx context.Context, op *guard.Op) (idempotency.Result, error)
	// ForwardFor reports whether it is still worth going forward; nil: always. An operation that was begun to be undone
	// is never taken forward by a saga, whatever it says.
	ForwardFor func(rec store.Record) bool
}

// Probe asks a provider what became of one step. It must not change anything there. An error, and NotYet, mean: ask
// again later.
type Probe func(ctx context.Context, q Question) (Answer, error)

// Question names the step.
type Question struct {
	// Record is the operation, with the input that it was begun with.
	Record store.Record
	// Step is its name, and Key what went downstream with it.
	Step, Key string
	// Fence is the worker's: a provider that keeps the highest can refuse whoever had the operation before.
	Fence int64
}

// Fact is what a provider knows.
type Fact int

const (
	// NotYet: nobody knows now. It is the zero value, so a forgotten answer claims nothing.
	NotYet Fact = iota
	// Happened: it was done; Answer.Data is what the step would have given.
	Happened
	// DidNot: it was not done, and no request that is still on its way can do it. Where a provider takes two calls with
	// one key for two, wait for its longest time-out before this is the answer.
	DidNot
	// Refused: it was refused for good; Answer.Code says why.
	Refused
)

// Answer is what a provider said.
type Answer struct {
	Fact Fact
	// Data of a step that happened.
	Data []byte
	// Code and Text of a refusal: as in [idempotency.Terminal].
	Code, Text string
}

// Outcome is what became of an operation that a worker took.
type Outcome string

const (
	// Completed: it has a result now.
	Completed Outcome = "completed"
	// Failed: it has a final refusal now.
	Failed Outcome = "failed"
	// Compensated: it was undone, and its refusal says so.
	Compensated Outcome = "compensated"
	// Released: nothing had happened, and the key is free.
	Released Outcome = "released"
	// Postponed: nobody knows yet; it is asked again.
	Postponed Outcome = "postponed"
	// Stuck: it was given to a person.
	Stuck Outcome = "stuck"
	// Lost: another worker or caller has it, or the store did not answer: this one has left it alone.
	Lost Outcome = "lost"
)
