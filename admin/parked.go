package admin

import (
	"context"
	"crypto/sha256"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// DefaultLimit is the default length of a list.
const DefaultLimit = 100

// Parked has the fields that the parked events of an outbox and of an inbox share.
type Parked struct {
	ID        int64     `json:"id"` // its order in the list of its key
	MessageID uuid.UUID `json:"message_id"`
	// Tenant and Key of an inbox are the record's bytes, which need not be text.
	Tenant string `json:"tenant"`
	Topic  string `json:"topic"`
	Key    string `json:"key"`
	Type   string `json:"type"`
	// Kind is "refused" by Kafka, "failed" in an effect, "behind" another parked event of its key, or "quarantined" in
	// an inbox.
	Kind string `json:"kind"`
	// Alone says that later events of the key are not parked behind it.
	Alone     bool      `json:"alone"`
	Releasing bool      `json:"releasing"`
	Attempts  int       `json:"attempts"` // failed ones
	Error     string    `json:"error"`    // the last error
	Code      string    `json:"code"`     // the error's code
	ParkedAt  time.Time `json:"parked_at"`
	Bytes     int       `json:"bytes"` // size of the payload; -1 for a tombstone
	// Payload and headers are set by Operator.ParkedEvent only.
	Payload []byte `json:"payload,omitempty"`
}

// ParkedOperator is implemented by the operators of an outbox and of an inbox.
type ParkedOperator interface {
	BlockedKeys(ctx context.Context, f BlockedFilter) ([]BlockedKey, error)
	Failures(ctx context.Context, f FailureFilter) ([]Failure, error)
	EditParked(ctx context.Context, id int64, edit Edit, reason string) error
	ReleaseKey(ctx context.Context, tenant, topic, key string, seen Seen, reason string) (events int64, err error)
	ReleaseEvent(ctx context.Context, id int64, reason string) error
	DiscardEvent(ctx context.Context, id int64, reason string) (DiscardResult, error)
	DiscardKey(ctx context.Context, tenant, topic, key string, seen Seen, reason string) (DiscardResult, error)
	Audit(ctx context.Context, limit int) ([]AuditEntry, error)
}

// ParkedFilter selects parked events. The zero value selects the first 100 of all.
type ParkedFilter struct {
	ID        int64         // 0: any
	MessageID uuid.UUID     // zero: any
	Tenant    *string       // nil: any
	Topic     string        // empty: any
	Key       string        // empty: any
	Code      string        // the code of the error, such as "MESSAGE_TOO_LARGE"; empty: any
	Kind      string        // Parked.Kind; empty: any
	OlderThan time.Duration // parked for at least this long
	After     int64         // only higher IDs, for the next page
	Limit     int           // default 100
}

// BlockedFilter selects parked keys. The zero value selects the first 100 of all.
type BlockedFilter struct {
	Tenant    *string       // nil: any
	Topic     string        // empty: any
	Key       string        // empty: any
	Code      string        // the code of the error; empty: any
	OlderThan time.Duration // in its state for at least this long
	Limit     int           // default 100
}

// BlockedKey is a key whose events wait for an operator, or are being released.
type BlockedKey struct {
	Consumer  string `json:"consumer,omitempty"` // only of an inbox
	Tenant    string `json:"tenant"`             // as in Parked, and Key too
	Topic     string `json:"topic"`
	Key       string `json:"key"`
	Releasing bool   `json:"releasing"`
	// AtBound says that its list has reached the inbox's Config.ParkedPerKey, at which the partition halts.
	AtBound bool      `json:"at_bound"`
	Since   time.Time `json:"since"`   // start of this state
	Error   string    `json:"error"`   // of its first event
	Code    string    `json:"code"`    // the error's code
	Waiting int64     `json:"waiting"` // number of events in its list
	// Oldest is the time at which the first event was appended to an outbox, or parked in an inbox; Since for an empty
	// list.
	Oldest time.Time  `json:"oldest"`
	HeadID int64      `json:"head_id"` // ID of the first event; 0 for an empty list
	Head   *uuid.UUID `json:"head"`    // its message id; nil for an empty list
}

// Seen is what an operator has seen of the list of a parked key. A change of another list fails with ErrAnotherList.
// Zero fields are not compared.
type Seen struct {
	Head int64 // ID of its first event
	Most int64 // how many events it had: there are no more now
}

// Edit is a change of a parked event. Nil fields stay unchanged.
type Edit struct {
	Payload     *[]byte            // a nil slice makes it a tombstone
	Headers     *map[string]string // replaces all; names that the codec reserves are refused
	ContentType *string
	// Before is the SHA-256 of the payload that the operator has seen. If the event has another payload, the edit fails
	// with ErrEdited. Nil: no comparison.
	Before *[sha256.Size]byte
	// HeadersBefore is, in the same way, the HeadersSum of content type and headers.
	HeadersBefore *[sha256.Size]byte
	// AnyBytes allows a Payload that is not JSON in place of one that is.
	AnyBytes bool
}

// HeadersSum is the SHA-256 of content type and headers, in their order.
func HeadersSum(contentType string, own [][2]string) [sha256.Size]byte {
	b := strconv.AppendQuote(nil, contentType)
	for _, h := range own {
		b = strconv.AppendQuote(strconv.AppendQuote(b, h[0]), h[1])
	}
	return sha256.Sum256(b)
}

// SkipResult is the result of a discard of the first event of a key's list.
type SkipResult struct {
	ID             int64     `json:"id"`
	MessageID      uuid.UUID `json:"message_id"`
	MaybePublished int64     `json:"may_appear"` // as in DiscardResult
	Released       int64     `json:"released"`   // events behind it
}

// DiscardResult is the result of a discard.
type DiscardResult struct {
	Events int64 `json:"events"`
	// MaybePublished counts events with an attempt that is in flight, or may have reached the broker: each may still
	// appear once, out of order. Zero for an inbox.
	MaybePublished int64 `json:"may_appear"`
}
