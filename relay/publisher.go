package relay

import (
	"context"

	"github.com/effectonce/effectonce/event"
)

// Publisher sends events to where consumers read them. Package publisher has the one for Kafka.
//
// Publish returns one verdict per event, in a slice of the same length. Nil means acked: the event is durable, as it
// was given. An [outcome.Refusal] means certainly refused, by an answer: sending the same event again cannot succeed
// until somebody changes something. After [outcome.Retryable] this call did not send the event. Without an answer the
// outcome is unknown: the verdict is any other error, and the event will be sent again.
//
// Events come in the order in which they must be written. A publisher must not send an event of a partition after one
// of the same partition, of this or an earlier call, that is neither acked nor certain never to be written late: first
// occurrences must be in order. No event is acked after one of its key that is not: the relay logs an error.
//
// It must be safe for concurrent calls. When ctx ends it must return, after its requests in flight, and must send
// nothing new. It must neither change the events nor keep the slice: the next claim overwrites it.
//
// A publisher whose topics have partitions should be a [Router] too: a partition that does not answer is then held
// while the others continue. Without it, every topic counts as one partition. Package publishertest examines one, and
// names the sentence that it breaks.
type Publisher interface {
	Publish(ctx context.Context, events []event.Event) []error
}

// Router is a [Publisher] that can tell where events go before it sends them.
type Router interface {
	// Route returns the function that returns the partition of a topic's events, as Publish would choose it now. It
	// returns an error if the partitions are unknown at the moment, at once or when ctx ends.
	Route(ctx context.Context, topic string) (partition func(e *event.Event) int32, err error)
}

// Reacher is a [Publisher] that can tell whether it is reachable. A relay without lanes asks at each heartbeat: while
// it gets an error it takes no lanes from other relays, nor free ones that they may take. A relay whose events stay
// without an ack asks before it claims other lanes.
type Reacher interface {
	// Reach returns nil if a broker answers, and the refusal of [Outbox.Pin] if it is of another cluster than the
	// outbox publishes to: such a relay gives up its lanes. It ends when ctx does.
	Reach(ctx context.Context) error
}
