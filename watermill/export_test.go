package watermill

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/effectonce/effectonce/event"
)

// ToEvent is what an Outbox appends for a message.
func ToEvent(topic string, m *message.Message, cfg OutboxConfig) (event.Event, error) {
	return toEvent(topic, m, &newOutbox(cfg).cfg)
}

// FromEvent is what a publisher behind the relay gets.
func FromEvent(e event.Event) *message.Message { return fromEvent(&e) }

// Consumed is what an Inbox makes of a message.
func Consumed(i *Inbox, topic string, m *message.Message) (event.Event, error) {
	return i.event(topic, m)
}

// Released is what a handler gets of a message that was parked.
func Released(e event.Event) *message.Message { return released(&e) }
