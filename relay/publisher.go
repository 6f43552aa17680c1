package relay

import (
	"context"

	"github.com/effectonce/effectonce/event"
)

// Publisher sends events to where consumers read them. Package publisher has the one for Kafka.
//
// Publish returns one verdict per event, in a slice of the same length: nil means acked, durable where it was sent. An
// error with a method Rejected() bool that returns true means refused for certain: sending the same event again cannot
// succeed until somebody changes something. Its method Scope() string, if it has one, says what is refused: "record"
// (the event; the default) or "topic" (whatever goes there); its method RefusalCode() string gives operators a name to
// search by. Any other error means that the outcome is unknown: it may have been written, and it will be sent again; a
// method NotSent() bool that returns true says that this call, at least, did not send it. A refusal whose method
// MaybeWritten() bool returns true came after an attempt of the same call whose outcome is unknown.
//
// Events come in the order in which they must be written. A publisher must not send an event of a partition after one
// of the same partition, of this or an earlier call, that is neither acked nor known never to be written late in its
// place: first occurrences must be in order. It must be safe for concurrent calls. It should finish what is in flight
// when ctx ends, for a bounded time, and must send nothing new. It must not keep the slice: the next claim overwrites
// it.
//
// A publisher whose topics have partitions should be a [Router] too: a partition that does not answer is then held
// while the others go on. Without, every topic counts as one partition.
type Publisher interface {
	Publish(ctx context.Context, events []event.Event) []error
}

// Router is a [Publisher] that can tell where events go before it sends them.
type Router interface {
	// Route returns the function that gives the partition of a topic's events, as Publish would choose it now. An error
	// says that it cannot be known at the moment; it should come at once, or when ctx ends.
	Route(ctx context.Context, topic string) (partition func(e *event.Event) int32, err error)
}

// Reacher is a [Publisher] that can tell whether it reaches what it publishes to. A relay without lanes asks at each
// heartbeat: while it gets an error it takes no lanes from other relays, nor free ones that they may take. A relay
// whose events stay without an ack asks before it claims for other lanes.
type Reacher interface {
	// Reach returns nil when something answers. It ends when ctx does.
	Reach(ctx context.Context) error
}
