// Package admin has what the operators of an outbox, an inbox and idempotency keys share: the parked events that they
// list, edit, release and discard, the failures that they handle as one, and the rows of their audit. Packages
// relay/operator, inbox/operator and idempotency/pgstore/operator have the operators.
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

// ErrNotParked is returned for an event or key that is not parked, or no longer.
var ErrNotParked = errors.New("not parked: it was released or discarded meanwhile, or never was; list what is parked")

// ErrEdited is returned for an edit of a payload that somebody else has changed since Edit.Before was computed.
var ErrEdited = errors.New("has another payload than the one that was seen: look at it again")

// ErrReleasing is returned for a change of an event that is being released. Wait until it is published or applied, or
// parked again.
var ErrReleasing = errors.New("is being released at this moment: wait until that is done, or it is parked again")
