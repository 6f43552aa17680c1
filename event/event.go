package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
)

// Event is a fact that a producer publishes.
type Event struct {
	// ID identifies the event: an inbox applies an id once per consumer. Zero: Append assigns a UUIDv7.
	ID uuid.UUID
	// Source names the producer (CloudEvents source), such as "payments". Empty: the Appender's Source.
	Source string
	// Tenant scopes the event. Empty: none.
	Tenant string
	// Topic is the Kafka topic: 1 to 249 characters of [a-zA-Z0-9._-]. Required.
	Topic string
	// Key determines the order: events of one key are published and applied in their causal order. Empty: no order.
	Key string
	// Type is the kind of fact (CloudEvents type), such as "PaymentCreated". Required.
	Type string
	// ContentType describes Payload, such as "application/json". Empty: no content-type header is sent.
	ContentType string
	// Headers are the event's own Kafka headers. Names that the codec writes itself are refused, see [ReservedHeader].
	Headers map[string]string
	// Payload is the record's value. Nil is a Kafka tombstone; empty and not nil is an empty value.
	Payload []byte
	// Time is when the fact happened (CloudEvents time), to the microsecond. Zero: when it was appended.
	Time time.Time
	// NotBefore is the earliest time of publication. Zero or in the past: as soon as the event is committed. Append
	// stores a later event apart. When it is due, by the database's clock, it takes its place after the events that its
	// key has by then. NotBefore is not in the record.
	NotBefore time.Time
	// Position is the event's place in its lane and in the log. The relay and the consumer set it; Append ignores it.
	Position Position
	// Raw is the Kafka record as the consumer read it; [Event.Record] decodes it. It may share memory with Payload. Nil
	// for an event that was not consumed. Only packages consumer, inbox and watermill set it.
	Raw []byte
}

// Position is an event's place in the outbox's numbering and in Kafka's log.
type Position struct {
	// Lane is the outbox lane, 0 to 31: a shard of the outbox that has one owner at a time. -1 when unknown.
	Lane int16
	// Epoch is the numbering of Seq: "<outbox id>.<incarnation>". Empty for foreign events.
	Epoch string
	// Seq counts up in publish order within (Epoch, Topic, Partition, Lane). Gaps are legal; duplicates repeat their
	// number.
	Seq int64
	// Partition and Offset are where the consumer read the record.
	Partition int32
	Offset    int64
	// Absent is the number of offsets directly before Offset without a record for consumers: control records, and
	// records that were aborted, compacted away or removed. The consumer sets it.
	Absent int64
	// Timestamp is the record's time in Kafka's log, which may differ from Event.Time. The relay sets it to the
	// database's time at publication, and the record gets that time or a later one. The consumer sets it. Zero:
	// unknown.
	Timestamp time.Time
	// First is set by the relay if it knows of no earlier attempt to publish the event. It is not in the record.
	First bool
	// MaybePublished says that an attempt under another number may have published the event: Kafka refused it after an
	// attempt of unknown outcome, and an operator released it. A consumer by numbers cannot tell whether it is a
	// repeat; a consumer by ids can.
	MaybePublished bool
	// Replayed says that the event was published before under another number, and that an operator published it again.
	// The consumer sets it.
	Replayed bool
}

// ContentTypeJSON is the content type that [NewJSON] sets.
const ContentTypeJSON = "application/json"

// NewJSON returns next with the JSON of v as payload, and with an id if it has none, so that the caller knows the id
// before Append. It fails only if v cannot be marshalled.
func NewJSON(next Event, v any) (Event, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return Event{}, fmt.Errorf("event: marshalling the payload of a %q event: %w", next.Type, err)
	}
	if next.ID == uuid.Nil {
		next.ID = NewID()
	}
	next.ContentType, next.Payload = ContentTypeJSON, payload
	return next, nil
}

// DecodeJSON parses the payload of an event into a T. The payload null is an error, unless T has a nil value or an
// UnmarshalJSON method. Errors name the event and never contain the payload.
func DecodeJSON[T any](e Event) (T, error) {
	var v T
	err := json.Unmarshal(e.Payload, &v)
	switch {
	case err != nil:
		err = redact(err)
	case string(bytes.TrimSpace(e.Payload)) == "null" && !takesNull(&v):
		err = errors.New("it is null")
	default:
		return v, nil
	}
	return v, fmt.Errorf("event: %s event %s is not the JSON of a %T: %w", e.Type, e.ID, v, err)
}

func takesNull[T any](v *T) bool {
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	_, own := any(v).(json.Unmarshaler)
	return own
}

// redact keeps the place and kind of a JSON error and drops the value that it quotes.
func redact(err error) error {
	switch e := err.(type) {
	case *json.UnmarshalTypeError:
		return fmt.Errorf("a JSON %s cannot be field %q of type %s (at byte %d)", kindOf(e.Value), e.Field, e.Type,
			e.Offset)
	case *json.SyntaxError:
		return fmt.Errorf("a syntax error at byte %d", e.Offset)
	}
	return fmt.Errorf("%T", err)
}

// kindOf cuts "number 12.5" to "number": encoding/json appends the literal to the kind.
func kindOf(value string) string {
	for i, r := range value {
		if r == ' ' {
			return value[:i]
		}
	}
	return value
}
