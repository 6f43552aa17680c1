package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// DefaultLimit is how many rows a list has when nobody says.
const DefaultLimit = 100

// Parked is what a parked event of an outbox and one of an inbox have in common.
type Parked struct {
	ID        int64     `json:"id"` // the list of a key is in this order
	MessageID uuid.UUID `json:"message_id"`
	// Tenant and Key are in an inbox the record's bytes, which need not be text.
	Tenant string `json:"tenant"`
	Topic  string `json:"topic"`
	Key    string `json:"key"`
	Type   string `json:"type"`
	// Kind is why it is parked: it was "refused" by Kafka, or "failed" in an effect, or waits "behind" such an event,
	// or is "quarantined" in an inbox.
	Kind string `json:"kind"`
	// Alone: no key is held back for it. Otherwise the whole (tenant, topic, key) is parked.
	Alone     bool      `json:"alone"`
	Releasing bool      `json:"releasing"`
	Attempts  int       `json:"attempts"` // how often it was refused or failed
	Error     string    `json:"error"`    // the last one, as text
	Code      string    `json:"code"`     // the code of the error
	ParkedAt  time.Time `json:"parked_at"`
	Bytes     int       `json:"bytes"` // of the payload; -1: it is a tombstone
	// Payload and the headers are filled by Operator.ParkedEvent only.
	Payload []byte `json:"payload,omitempty"`
}

// ParkedFilter chooses parked events. The zero value is the first hundred of all.
type ParkedFilter struct {
	ID        int64         // the number in the list; 0: any
	MessageID uuid.UUID     // zero: any
	Tenant    *string       // nil: any
	Topic     string        // empty: any
	Key       string        // empty: any
	Code      string        // the code of the error, such as "MESSAGE_TOO_LARGE"; empty: any
	Kind      string        // as in the event; empty: any
	OlderThan time.Duration // parked for at least so long
	After     int64         // only numbers above it, for the next page
	Limit     int           // default 100
}

// BlockedFilter chooses parked keys. The zero value is the first hundred of all.
type BlockedFilter struct {
	Tenant    *string       // nil: any
	Topic     string        // empty: any
	Key       string        // empty: any
	Code      string        // the code of the error; empty: any
	OlderThan time.Duration // in its state for at least so long
	Limit     int           // default 100
}

// BlockedKey is a key whose events wait for an operator, or are being released.
type BlockedKey struct {
	Consumer  string `json:"consumer,omitempty"` // of an inbox
	Tenant    string `json:"tenant"`             // in an inbox bytes that need not be text, as Key
	Topic     string `json:"topic"`
	Key       string `json:"key"`
	Releasing bool   `json:"releasing"`
	// AtBound: its list is at the Config.ParkedPerKey of an inbox, and its partition halts.
	AtBound bool      `json:"at_bound"`
	Since   time.Time `json:"since"`   // of this state
	Error   string    `json:"error"`   // for which its first event was parked
	Code    string    `json:"code"`    // the code of the error
	Waiting int64     `json:"waiting"` // events in its list
	// Oldest is when the first of them was appended to an outbox, or parked in an inbox; Since when the list is empty.
	Oldest time.Time  `json:"oldest"`
	HeadID int64      `json:"head_id"` // the number of the first; 0 when the list is empty
	Head   *uuid.UUID `json:"head"`    // its message id; nil when the list is empty
}

// BlockedKeys reads what a statement returns of parked keys.
func (p *Person) BlockedKeys(ctx context.Context, statement string, args ...any) ([]BlockedKey, error) {
	return List(ctx, p, "listing parked keys", func(row pgx.CollectableRow) (k BlockedKey, err error) {
		var tenant, key []byte
		err = row.Scan(&k.Consumer, &tenant, &k.Topic, &key, &k.Releasing, &k.AtBound, &k.Since, &k.Error, &k.Code,
			&k.Waiting, &k.Oldest, &k.HeadID, &k.Head)
		k.Tenant, k.Key = string(tenant), string(key)
		return k, err
	}, statement, args...)
}

// Edit is what a person changes of a parked event; nil fields stay as they are.
type Edit struct {
	Payload     *[]byte            // a nil slice makes a tombstone
	Headers     *map[string]string // all of the event's own; names of the codec's are refused
	ContentType *string
}

// Check refuses headers that are the codec's own, and, where headers are kept as text, those that are none.
func (e Edit) Check(text bool) error {
	if e.Headers == nil {
		return nil
	}
	for name, value := range *e.Headers {
		switch {
		case event.ReservedHeader(name):
			return fmt.Errorf("header %q is the codec's own", name)
		case text && !(event.Storable(name) && event.Storable(value)):
			return fmt.Errorf("header %q is no text", name)
		}
	}
	return nil
}

// Detail says in the audit what was changed. It has no payload.
func (e Edit) Detail() map[string]any {
	return map[string]any{
		"payload": e.Payload != nil, "headers": e.Headers != nil,
		"content_type": e.ContentType != nil,
	}
}

// DiscardResult is what a discard did.
type DiscardResult struct {
	Events int64 `json:"events"`
	// MayAppear counts those of which an attempt may have reached the broker, or is under way: each may still appear
	// once, late, and then out of its order. None of an inbox.
	MayAppear int64 `json:"may_appear"`
}

// ErrInList is the error of a release of one event that has a key: the key's order would break.
func ErrInList(id int64) error {
	return fmt.Errorf("event %d stands in the list of its key: release the key, or discard what stands before it", id)
}
