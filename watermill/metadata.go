package watermill

import (
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/effectonce/effectonce/event"
)

// Names of metadata that have a meaning here.
const (
	// MetadataKey holds a message's key: messages of one key keep their order. It is the name that Watermill's own
	// tests and examples for Kafka use.
	MetadataKey = "partition_key"
	// MetadataUUID is the header of a Kafka record that holds the message's UUID, as watermill-kafka's DefaultMarshaler
	// writes and reads it. As metadata of a message it is reserved there, and here.
	MetadataUUID = "_watermill_message_uuid"
	// metadataName is the name of a command or event of Watermill's package cqrs.
	metadataName = "name"
	// metadataDue is when a message of Watermill's package delay may be delivered.
	metadataDue = "_watermill_delayed_until"
	// ownPrefix begins the headers that the relay puts among an event's own.
	ownPrefix = "effectonce_"
)

// PartitionKey returns the metadata [MetadataKey]. It is the Key function by default, and what
// NewWithPartitioningMarshaler of watermill-kafka wants, so that a publisher of it keeps the order of what our relay
// gives it.
func PartitionKey(_ string, m *message.Message) (string, error) {
	return m.Metadata.Get(MetadataKey), nil
}

// toEvent makes the event to append of a message. The errors name metadata and never quote their values.
func toEvent(topic string, m *message.Message, cfg *OutboxConfig) (event.Event, error) {
	e := event.Event{Topic: topic, Payload: m.Payload, Headers: make(map[string]string, len(m.Metadata)+1)}
	for name, value := range m.Metadata {
		if err := setMetadata(&e, name, value); err != nil {
			return event.Event{}, err
		}
	}
	if uuid, twice := e.Headers[MetadataUUID]; twice && uuid != m.UUID {
		return event.Event{}, fmt.Errorf("the metadata %s is another UUID than the message's own: leave it out",
			MetadataUUID)
	}
	if m.UUID != "" {
		e.Headers[MetadataUUID] = m.UUID
		e.ID = event.ForeignID(first(e.Source, cfg.Appender.Source, topic), m.UUID)
	}
	e.Type = first(e.Type, m.Metadata.Get(metadataName), cfg.Type, DefaultType)
	var err error
	if e.Key, err = cfg.Key(topic, m); err != nil {
		return event.Event{}, fmt.Errorf("its key: %w", err)
	}
	return e, nil
}

// setMetadata puts one entry where it belongs in an event to append.
func setMetadata(e *event.Event, name, value string) (err error) {
	switch name {
	case event.HeaderType:
		e.Type = value
	case event.HeaderSource:
		e.Source = value
	case event.HeaderTenant:
		e.Tenant = value
	case event.HeaderContentType:
		e.ContentType = value
	case event.HeaderTime:
		if e.Time, err = time.Parse(time.RFC3339Nano, value); err != nil {
			return fmt.Errorf("the metadata %s is no time as RFC 3339 writes it, such as 2026-01-02T15:04:05Z", name)
		}
	case metadataDue:
		if e.NotBefore, err = time.Parse(time.RFC3339Nano, value); err != nil {
			return fmt.Errorf("the metadata %s is no time as RFC 3339 writes it, such as 2026-01-02T15:04:05Z", name)
		}
		e.Headers[name] = value
	default:
		if event.ReservedHeader(name) || strings.HasPrefix(name, ownPrefix) {
			return fmt.Errorf("the metadata %.64q is reserved: the relay writes the headers that begin with ce_ and "+
				"%s itself; remove it, "+
				"above all from a message that was received and is published again", name, ownPrefix)
		}
		e.Headers[name] = value
	}
	return nil
}

// fromHeaders makes a message of the headers of a record. The UUID is the one that the producer gave, else the event's
// id.
func fromHeaders(headers []event.Header, id string, payload []byte) *message.Message {
	m := message.NewMessage(id, payload)
	for _, h := range headers {
		if h.Key == MetadataUUID {
			if len(h.Value) > 0 {
				m.UUID = string(h.Value)
			}
			continue
		}
		m.Metadata.Set(h.Key, string(h.Value))
	}
	return m
}

// fromEvent makes the message that a publisher behind the relay gets. It shares no memory with e.
func fromEvent(e *event.Event) *message.Message {
	var payload []byte
	if e.Payload != nil {
		payload = append(make([]byte, 0, len(e.Payload)), e.Payload...)
	}
	m := fromHeaders(event.AppendHeaders(nil, e), e.ID.String(), payload)
	if _, has := m.Metadata[MetadataKey]; !has && e.Key != "" {
		m.Metadata.Set(MetadataKey, e.Key)
	}
	return m
}

// first is the first text that is not empty.
func first(texts ...string) string {
	for _, s := range texts {
		if s != "" {
			return s
		}
	}
	return ""
}
