package store

import (
	"slices"
	"strings"

	"github.com/effectonce/effectonce/idempotency"
)

// StepState is the state of a step of an operation.
type StepState string

const (
	// StepSent: begun, its outcome is not recorded. A local step never has it: it is recorded after it is done.
	StepSent StepState = "SENT"
	// StepDone: done; Data is its result.
	StepDone StepState = "DONE"
	// StepFailed: refused for good; Data is the refusal.
	StepFailed StepState = "FAILED"
	// StepUndoing: its compensation was begun, its outcome is not recorded.
	StepUndoing StepState = "UNDOING"
	// StepUndone: compensated.
	StepUndone StepState = "UNDONE"
)

// Step is one recovery point.
type Step struct {
	Name  string    `json:"name"`
	State StepState `json:"state"`
	// Key is the downstream key, the same in every attempt; empty for a local step.
	Key  string `json:"key,omitempty"`
	Data []byte `json:"data,omitempty"`
}

// Progress has an operation's recovery points, in the order in which they were begun.
type Progress struct {
	Stage idempotency.Stage
	Steps []Step
}

// Clone returns a copy that shares no memory with the original.
func (p Progress) Clone() Progress {
	p.Steps = slices.Clone(p.Steps)
	for i := range p.Steps {
		p.Steps[i].Data = slices.Clone(p.Steps[i].Data)
	}
	return p
}

// StageOf returns the stage of an operation by its recovery points. A step without a downstream key is local.
func StageOf(steps []Step) idempotency.Stage {
	stage := idempotency.Received
	for _, s := range steps {
		switch {
		case s.State == StepSent || s.State == StepUndoing:
			return idempotency.ProviderRequestSent
		case s.Key != "":
			stage = idempotency.ProviderConfirmed
		case stage == idempotency.Received:
			stage = idempotency.LocalCreated
		}
	}
	return stage
}

// maxReason is the maximum number of bytes of a reason.
const maxReason = 500

// Reason returns an error's text in a form that every store accepts: a provider's answer may contain any bytes.
func Reason(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), maxReason)], "\x00", ""), "?")
}
