package watermill

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/effectonce/effectonce/event"
)

// ToEvent returns the event that an Outbox appends.
func ToEvent(topic string, m *message.Message, cfg OutboxConfig) (event.Event, error) {
	return toEvent(topic, m, &newOutbox(cfg).cfg)
}

// FromEvent returns the message that a Publisher sends.
func FromEvent(e event.Event) *message.Message { return fromEvent(&e) }

// Decode returns the event that an Inbox makes of a message.
func Decode(i *Inbox, topic string, m *message.Message) (event.Event, error) {
	return i.decode(topic, m)
}

// ReleasedMessage returns the message that a handler gets of a released event.
func ReleasedMessage(e event.Event) *message.Message { return releasedMessage(&e) }
