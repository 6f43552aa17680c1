package relay

import (
	"context"
	"errors"

	"github.com/effectonce/effectonce/event"
)

// Publisher sends events to where consumers read them. Package publisher has the one for Kafka.
//
// Publish returns one verdict per event, in a slice of the same length: nil means acked, durable where it was sent. An
// error with a method Rejected() bool that returns true means refused for certain: sending the same event again cannot
// succeed until somebody changes something. Any other error means that the outcome is unknown: it may have been
// written, and it will be sent again.
//
// Events come in the order in which they must be written. A publisher must not send an event of a partition after
// one of the same partition, of this or an earlier call, that is neither acked nor known never to be written late in its
// place: first occurrences must be in order. It must be safe for concurrent calls. It should finish what is in flight
// when ctx ends, for a bounded time, and must send nothing new. It must not keep the slice: the next claim overwrites it.
type Publisher interface {
	Publish(ctx context.Context, events []event.Event) []error
}

// rejected reports whether a verdict is a certain refusal, and of what ("record" or "topic").
func rejected(err error) (scope string, ok bool) {
	var r interface{ Rejected() bool }
	if !errors.As(err, &r) || !r.Rejected() {
		return "", false
	}
	var s interface{ Scope() string }
	if errors.As(err, &s) {
		return s.Scope(), true
	}
	return "record", true
}
