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

// Event is one fact that a producer tells the world.
type Event struct {
	// ID names the event for ever: the inbox applies an id once per consumer. Zero: Append assigns a UUIDv7.
	ID uuid.UUID
	// Source says who tells it (CloudEvents source), such as "payments". Empty: the Appender's Source.
	Source string
	// Tenant scopes the event. Empty: none.
	Tenant string
	// Topic is the Kafka topic: 1 to 249 characters of [a-zA-Z0-9._-]. Required.
	Topic string
	// Key orders: events of one key are published and applied in their causal order. Empty: no order is promised.
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
	// NotBefore is when the event may be published at the earliest. In the past or zero: as soon as it is committed.
	// Append sets an event of the future aside; the database's clock decides when it is due, and only then does it take
	// its place behind what its key has had until then. It is not on the wire.
	NotBefore time.Time
	// Position is where the event stands in its lane and in the log. The relay and the consumer set it; Append ignores
	// it.
	Position Position
	// Raw is the Kafka record as the consumer read it, which [Event.Record] takes apart. It may share memory with
	// Payload. Nil for an event that was not read from anywhere. Packages consumer, inbox and watermill set it, and
	// nobody else.
	Raw []byte
}

// Position is an event's place in the outbox's numbering and in Kafka's log.
type Position struct {
	// Lane is the outbox lane, 0 to 31: a shard of the outbox that has one owner at a time. -1 when unknown.
	Lane int16
	// Epoch is "<outbox id>.<incarnation>": which numbering Seq belongs to. Empty for foreign events.
	Epoch string
	// Seq counts up in publish order within (Epoch, Topic, Partition, Lane). Gaps are legal; duplicates repeat their
	// number.
	Seq int64
	// Partition and Offset are where the consumer read the record.
	Partition int32
	Offset    int64
	// Absent is how many offsets directly before Offset have no record for a consumer: control records, and those that
	// were aborted, compacted away or removed. The consumer sets it.
	Absent int64
	// Timestamp is the record's own time in Kafka's log, which an event's Time need not be. The consumer sets it.
	// The relay sets it to the database's time when it publishes: the record gets that or a later one. Zero: not known.
	Timestamp time.Time
	// First is set by the relay when it knows of no earlier attempt to publish the event. It is not on the wire.
	First bool
	// Maybe says that an earlier attempt under another number may have written the event: it was refused after an
	// attempt of unknown outcome, and an operator released it. A consumer that goes by numbers cannot tell; one by ids
	// can.
	Maybe bool
	// Replayed says that the event was written before under another number, and that an operator has it published once
	// more. The consumer sets it.
	Replayed bool
}

// ContentTypeJSON is the content type that [JSON] sets.
const ContentTypeJSON = "application/json"

// JSON makes an event whose payload is v as JSON, with an id, so that the caller knows it before it is appended.
// It fails only when v cannot be marshalled.
func JSON(topic, key, typ string, v any) (Event, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return Event{}, fmt.Errorf("event: marshalling the payload of a %q event: %w", typ, err)
	}
	return Event{ID: NewID(), Topic: topic, Key: key, Type: typ, ContentType: ContentTypeJSON, Payload: payload}, nil
}

// DecodeJSON parses the payload of an event into a T. The payload null is an error, unless T has a nil value or an
// UnmarshalJSON of its own. An error says which event it was and never contains the payload.
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
