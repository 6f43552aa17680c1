// Package admin defines the types that the operators of an outbox, an inbox and idempotency keys share: parked events,
// edits, failures and rows of the audit. The operators are in packages relay/operator, inbox/operator and
// idempotency/pgstore/operator.
package admin

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
)

// AuditEntry is a row of the audit.
type AuditEntry struct {
	At        time.Time       `json:"at"`
	Operator  string          `json:"operator"`
	Action    string          `json:"action"`
	Reason    string          `json:"reason"`
	Consumer  string          `json:"consumer,omitempty"` // only of an inbox
	MessageID *uuid.UUID      `json:"message_id"`         // nil if the action is not about one event
	Tenant    string          `json:"tenant"`
	Topic     string          `json:"topic"`
	Key       string          `json:"key"`
	Operation string          `json:"operation,omitempty"` // only of idempotency keys, which have no topic
	Detail    json.RawMessage `json:"detail"`
}

// Acknowledgement says that a person knows of a finding of the doctor, and why it stays, until a time.
type Acknowledgement struct {
	Check string `json:"-"`
	// Found is what the doctor had found; its numbers and durations do not count.
	Found    string    `json:"-"`
	Operator string    `json:"operator"`
	Reason   string    `json:"reason"`
	Until    time.Time `json:"until"`
}

// MostReason is how many bytes the reason of a change may have at most; the audit keeps it.
const MostReason = 4096

// ErrNotParked: the event or key is not parked, or no longer parked.
var ErrNotParked = errors.New("not parked: it was released or discarded meanwhile, or never was; list what is parked")

// ErrEdited: the event has changed since Edit.Before or Edit.HeadersBefore was computed.
var ErrEdited = errors.New("has another payload than the one that was seen: look at it again")

// ErrAnotherList: the list of a parked key is another one than Seen says.
var ErrAnotherList = errors.New("has another list than the one that was seen")

// ErrReleasing: an event cannot be changed during its release. Wait until the event is published or applied, or parked
// again.
var ErrReleasing = errors.New("is being released at this moment: wait until that is done, or it is parked again")
