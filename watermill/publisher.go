package watermill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay"
)

// PublisherConfig sets a [Publisher]. The zero value is a safe default for every field.
type PublisherConfig struct {
	// Parallel is the number of messages in flight in one call of Publish, each of another lane of a topic. Default 32,
	// the number of lanes.
	Parallel int
	// Timeout bounds the publishing of one message. After it the message's context ends, its outcome is unknown, and
	// its lane sends nothing until the publisher has returned; a publisher that never returns holds one goroutine for
	// each lane. Default 30 s. A timeout shorter than the publisher's own causes duplicates. Negative: none.
	Timeout time.Duration
	// Refused classifies an error of the publisher. Return RecordRefused or TopicRefused only for an error that proves
	// that the message was not written and cannot be, such as sarama.ErrMessageSizeTooLarge: the event is parked, and
	// its key with it. A refused message is sent once more, alone, and that answer counts, because a publisher that
	// batches refuses the whole batch for one of its messages. Default: no error is a refusal, and a message that fails
	// is sent again without end.
	Refused func(topic string, err error) Meaning
	// Propagator extracts the trace from an event's headers into its message's context; it must be the Appender's. Nil:
	// W3C trace context, without baggage.
	Propagator propagation.TextMapPropagator
}

// Meaning is what an error of a message.Publisher says.
type Meaning int

const (
	// NotRefused: the outcome is unknown, or the message can be sent later.
	NotRefused Meaning = iota
	// RecordRefused: the broker will never accept this message.
	RecordRefused
	// TopicRefused: the broker accepts no message for this topic, which does not exist or denies writes.
	TopicRefused
)

// Publisher is a relay.Publisher over a message.Publisher. It is safe for concurrent use.
//
// Watermill's Publish returns one error for all its messages, so each message is published by its own call, whose error
// is its verdict: nil is acked, an error is unknown unless PublisherConfig.Refused says that it is a refusal. A message
// is sent when the one before it in its lane was acked; lanes of a topic are sent in parallel. A relay that reads the
// WAL has one lane, so its messages are sent one at a time, which is slow; let it read the table.
//
// The message.Publisher must be synchronous: if it returns nil before a message is durable, a crash loses the message.
// It must keep the order of the messages of a key, see [PartitionKey].
type Publisher struct {
	to  message.Publisher
	cfg PublisherConfig

	mu       sync.Mutex
	inFlight map[lane]bool // until the publisher returns, even after Timeout

	exclusive sync.RWMutex // locked while a refused message is sent alone, read-locked by others
}

var _ relay.Publisher = (*Publisher)(nil)

// lane is a lane of the outbox in one topic: its messages keep their order.
type lane struct {
	topic  string
	number int16
}

// NewPublisher returns a publisher for a relay that publishes through to.
func NewPublisher(to message.Publisher, cfg PublisherConfig) (*Publisher, error) {
	if to == nil {
		return nil, errors.New("watermill: NewPublisher needs a message.Publisher")
	}
	if cfg.Parallel < 0 {
		return nil, fmt.Errorf("watermill: Parallel is %d: leave it zero for 32", cfg.Parallel)
	}
	cfg.Parallel = cmp.Or(cfg.Parallel, relay.Lanes)
	if cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Second); cfg.Timeout < 0 {
		cfg.Timeout = math.MaxInt64
	}
	if cfg.Refused == nil {
		cfg.Refused = func(string, error) Meaning { return NotRefused }
	}
	if cfg.Propagator == nil {
		cfg.Propagator = propagation.TraceContext{}
	}
	return &Publisher{to: to, cfg: cfg, inFlight: map[lane]bool{}}, nil
}

// Publish returns one verdict per event, see relay.Publisher. After the end of ctx it sends no more messages; those in
// flight have until Timeout.
func (p *Publisher) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := make([]error, len(events))
	lanes := map[lane][]int{}
	var order []lane
	for i := range events {
		l := lane{events[i].Topic, events[i].Position.Lane}
		if lanes[l] == nil {
			order = append(order, l)
		}
		lanes[l] = append(lanes[l], i)
	}
	c := &publishCall{Publisher: p, events: events, verdicts: verdicts, refused: map[string]bool{}}
	var g errgroup.Group
	g.SetLimit(p.cfg.Parallel)
	for _, l := range order {
		g.Go(func() error { c.send(ctx, l, lanes[l]); return nil })
	}
	_ = g.Wait() // errors are verdicts
	return verdicts
}

// Close closes the message.Publisher. Call it when the relay has ended.
func (p *Publisher) Close() error { return p.to.Close() }

// acquire returns false if a message of the lane is in flight.
func (p *Publisher) acquire(l lane) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight[l] {
		return false
	}
	p.inFlight[l] = true
	return true
}

func (p *Publisher) release(l lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.inFlight, l)
}

// idle reports whether no message is in flight, not even one that timed out.
func (p *Publisher) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.inFlight) == 0
}
