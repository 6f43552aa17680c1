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
	// Parallel is how many messages are on their way at a time, each of another lane. Default 32, the number of lanes.
	// With fewer a slow publisher is slower still; more are never used for one topic.
	Parallel int
	// Timeout is how long one message may take. Then its outcome counts as unknown, the context of the message ends,
	// and its lane sends nothing until the publisher has answered after all: a publisher that never does costs one
	// goroutine for each lane. Default 30 s; shorter than what the publisher itself takes to give up, and messages are
	// written twice for nothing. Negative: no bound.
	Timeout time.Duration
	// Refused says what an error of the publisher means. Only answer RecordRefused or TopicRefused when it is certain
	// that the message was not written and cannot be, such as sarama.ErrMessageSizeTooLarge: the event is parked then,
	// and its key with it. A message that is refused so is sent once more, with nothing beside it, before it counts:
	// publishers that gather what is on its way at the same time refuse the innocent with the guilty. Default: no error
	// is a refusal, and a message that fails is sent again for ever.
	Refused func(topic string, err error) Refusal
	// Propagator takes the trace out of an event's headers for its message's context; it must be the Appender's. Nil:
	// W3C trace context, without baggage.
	Propagator propagation.TextMapPropagator
}

// Refusal says whether an error of a publisher is certain, and of what.
type Refusal int

const (
	// NotRefused: the outcome is unknown, or the message can be sent later.
	NotRefused Refusal = iota
	// RecordRefused: this message will not be taken, others will.
	RecordRefused
	// TopicRefused: nothing is taken for this topic, which is not there, or may not be written to.
	TopicRefused
)

// Publisher puts a message.Publisher behind a relay. It is safe for concurrent use.
//
// Watermill's Publish gives one error for many messages, which does not tell what was sent. So each message is
// published by a call of its own, and its answer is its verdict: nil is acked, an error is unknown, a refusal is what
// PublisherConfig.Refused says is one. The messages of a lane, and so of a key, go one after the other, the next when
// the one before was acked; lanes go side by side. A relay that reads the WAL has one lane for all, whose numbers must
// rise in each partition: messages go one at a time then, which is slow; let it read the table.
//
// The publisher must be synchronous: a nil that comes before the message is durable loses what a crash finds on the
// way. It must put the messages of a key, see [PartitionKey], where they keep their order.
type Publisher struct {
	to  message.Publisher
	cfg PublisherConfig

	mu   sync.Mutex
	busy map[lane]bool // a message is on its way

	// beside is held by every message that may have others beside it, and locked by one that must not.
	beside sync.RWMutex
}

var _ relay.Publisher = (*Publisher)(nil)

// lane is what keeps an order: a lane of the outbox, in one topic.
type lane struct {
	topic string
	n     int16
}

// NewPublisher returns the relay's publisher that sends through to.
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
		cfg.Refused = func(string, error) Refusal { return NotRefused }
	}
	if cfg.Propagator == nil {
		cfg.Propagator = propagation.TraceContext{}
	}
	return &Publisher{to: to, cfg: cfg, busy: map[lane]bool{}}, nil
}

// Publish is a relay's: one verdict per event. Its context bounds what is begun; what is on its way has until Timeout.
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
	c := &call{Publisher: p, events: events, verdicts: verdicts, refused: map[string]bool{}}
	var g errgroup.Group
	g.SetLimit(p.cfg.Parallel)
	for _, l := range order {
		g.Go(func() error { c.send(ctx, l, lanes[l]); return nil })
	}
	_ = g.Wait() // nothing fails but single messages
	return verdicts
}

// Close closes the publisher behind. Call it when the relay has ended.
func (p *Publisher) Close() error { return p.to.Close() }

// take makes a lane this call's; false: an earlier call's message is still on its way there.
func (p *Publisher) take(l lane) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[l] {
		return false
	}
	p.busy[l] = true
	return true
}

// quiet reports whether no message is on its way, not even one that nobody waits for any more.
func (p *Publisher) quiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.busy) == 0
}

func (p *Publisher) free(l lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, l)
}
