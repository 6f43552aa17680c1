package watermill

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/effectonce/effectonce/event"
)

// Metadata with a meaning in this package.
const (
	// MetadataKey holds a message's key: messages of one key keep their order. Watermill's tests and examples for
	// Kafka use this name.
	MetadataKey = "partition_key"
	// MetadataUUID is the header of a Kafka record that holds the message's UUID, as watermill-kafka's DefaultMarshaler
	// writes and reads it. Metadata of this name is reserved, as it is there.
	MetadataUUID = "_watermill_message_uuid"
	// metadataName is the name of a command or event of Watermill's package cqrs.
	metadataName = "name"
	// metadataDue is the time before which Watermill's package delay does not deliver a message.
	metadataDue = "_watermill_delayed_until"
	// relayPrefix begins headers that the relay adds.
	relayPrefix = "effectonce_"
)

// PartitionKey returns the metadata [MetadataKey]. It is the default Key function. Give it to watermill-kafka's
// NewWithPartitioningMarshaler too, so that a [Publisher] over it keeps the order of a key.
func PartitionKey(_ string, m *message.Message) (string, error) {
	return m.Metadata.Get(MetadataKey), nil
}

// toEvent makes the event to append. Its errors name metadata and never quote values.
func toEvent(topic string, m *message.Message, cfg *OutboxConfig) (event.Event, error) {
	e := event.Event{Topic: topic, Payload: m.Payload, Headers: make(map[string]string, len(m.Metadata)+1)}
	for name, value := range m.Metadata {
		if err := setMetadata(&e, name, value); err != nil {
			return event.Event{}, err
		}
	}
	if uuid, ok := e.Headers[MetadataUUID]; ok && uuid != m.UUID {
		return event.Event{}, fmt.Errorf("the metadata %s is not the message's UUID: leave it out",
			MetadataUUID)
	}
	if m.UUID != "" {
		e.Headers[MetadataUUID] = m.UUID
		e.ID = event.ForeignID(cmp.Or(e.Source, cfg.Appender.Source, topic), m.UUID)
	}
	e.Type = cmp.Or(e.Type, m.Metadata.Get(metadataName), cfg.Type, DefaultType)
	var err error
	if e.Key, err = cfg.Key(topic, m); err != nil {
		return event.Event{}, fmt.Errorf("key: %w", err)
	}
	return e, nil
}

// setMetadata sets the field or the header that holds this metadata.
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
			return fmt.Errorf("the metadata %s is not a time of RFC 3339 such as 2026-01-02T15:04:05Z", name)
		}
	case metadataDue:
		if e.NotBefore, err = time.Parse(time.RFC3339Nano, value); err != nil {
			return fmt.Errorf("the metadata %s is not a time of RFC 3339 such as 2026-01-02T15:04:05Z", name)
		}
		e.Headers[name] = value
	default:
		if event.ReservedHeader(name) || strings.HasPrefix(name, relayPrefix) {
			return fmt.Errorf("the metadata %.64q is reserved: the relay writes the headers that begin with ce_ and "+
				"%s; remove it, also from a received message that is published again", name, relayPrefix)
		}
		e.Headers[name] = value
	}
	return nil
}

// fromHeaders makes a message with the headers as metadata. Its UUID is the producer's, else id.
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

// fromEvent makes the message to publish. It shares no memory with e.
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
