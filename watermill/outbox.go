package watermill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

// DefaultType is the type of an event whose message says nothing of one.
const DefaultType = "watermill.message"

// OutboxConfig sets an [Outbox]. The zero value is ready.
type OutboxConfig struct {
	// Appender writes the events: its Schema, Source, bounds and tracing are those of package outbox.
	Appender outbox.Appender
	// Key gives a message's key: messages of one key are published and applied in the order in which they were
	// appended; empty: no order. It has the type of watermill-kafka's GeneratePartitionKey, so that the function you
	// have can stay. An error of it refuses the message. Default: [PartitionKey].
	Key func(topic string, m *message.Message) (string, error)
	// Type is the events' type where a message has neither the metadata "ce_type" nor "name". Default: [DefaultType].
	Type string
}

// Outbox is a message.Publisher that appends to the outbox, within a transaction: what it publishes is published if and
// when that commits. Make one for each transaction with [NewOutbox] or [NewOutboxSQL], or one for all with
// [NewOutboxFromContext].
type Outbox struct {
	cfg    OutboxConfig
	mu     *sync.Mutex // a transaction takes one statement at a time; nil where each message brings its own
	closed atomic.Bool
	// add appends events in the transaction that ctx or the Outbox has.
	add func(ctx context.Context, events []event.Event) error
	// txOf tells transactions apart that come with messages; nil: there is one.
	txOf func(ctx context.Context) (pgx.Tx, error)
}

var _ message.Publisher = (*Outbox)(nil)

// NewOutbox returns a publisher to the outbox within tx. It takes the place of forwarder.NewPublisher over a publisher
// of watermill-sql; Close it or not, as you like.
func NewOutbox(tx pgx.Tx, cfg OutboxConfig) (*Outbox, error) {
	if tx == nil {
		return nil, errors.New("watermill: tx is nil: publish within the transaction of the business change")
	}
	o := newOutbox(cfg)
	o.mu = new(sync.Mutex)
	o.add = func(ctx context.Context, events []event.Event) error {
		return o.cfg.Appender.Append(ctx, tx, events...)
	}
	return o, nil
}

// NewOutboxSQL is [NewOutbox] for a transaction of database/sql: *sql.Tx, or what embeds it.
func NewOutboxSQL(tx outbox.SQLTx, cfg OutboxConfig) (*Outbox, error) {
	if tx == nil {
		return nil, errors.New("watermill: tx is nil: publish within the transaction of the business change")
	}
	o := newOutbox(cfg)
	o.mu = new(sync.Mutex)
	o.add = func(ctx context.Context, events []event.Event) error {
		return o.cfg.Appender.AppendSQL(ctx, tx, events...)
	}
	return o, nil
}

// NewOutboxFromContext returns a publisher that takes the transaction from each message's context, see [Tx] and
// [WithTx]. It is for publishers that are made once, such as that of an event bus of Watermill's package cqrs: what a
// handler within an [Inbox] publishes with its message's context is committed with its effect.
func NewOutboxFromContext(cfg OutboxConfig) *Outbox {
	o := newOutbox(cfg)
	o.txOf = Tx
	o.add = func(ctx context.Context, events []event.Event) error {
		tx, err := Tx(ctx)
		if err != nil {
			return err
		}
		return o.cfg.Appender.Append(ctx, tx, events...)
	}
	return o
}

func newOutbox(cfg OutboxConfig) *Outbox {
	if cfg.Key == nil {
		cfg.Key = PartitionKey
	}
	return &Outbox{cfg: cfg}
}

// Publish appends the messages in their order. It does not change them. The context of each message gives its event's
// trace, and the first one's bounds the statement. A message that cannot be published is refused with an error that
// names it by its place from 0 (an [*outbox.EventError] where the event is at fault); roll the transaction back after
// any error.
func (o *Outbox) Publish(topic string, messages ...*message.Message) error {
	if o.closed.Load() {
		return errors.New("watermill: this outbox is closed: make one for each transaction")
	}
	events := make([]event.Event, len(messages))
	for i, m := range messages {
		var err error
		if events[i], err = toEvent(topic, m, &o.cfg); err != nil {
			return fmt.Errorf("watermill: message %d (%.64q): %w", i, m.UUID, err)
		}
	}
	if o.mu != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
	}
	return o.append(messages, events)
}

// append adds runs of messages that belong to one trace and one transaction, each with the context of its first: that
// is one statement for all, unless somebody publishes for several requests at once.
func (o *Outbox) append(messages []*message.Message, events []event.Event) error {
	var propagator propagation.TextMapPropagator = propagation.TraceContext{}
	if p := o.cfg.Appender.Propagator; p != nil {
		propagator = p
	}
	for from, to := 0, 0; from < len(messages); from = to {
		ctx := messages[from].Context()
		tx, trace, err := o.belongs(ctx, propagator)
		if err != nil {
			return fmt.Errorf("message %d: %w", from, err)
		}
		for to++; to < len(messages); to++ {
			next, its, err := o.belongs(messages[to].Context(), propagator)
			if err != nil || !sameTx(next, tx) || !maps.Equal(its, trace) {
				break
			}
		}
		if err := o.add(ctx, events[from:to]); err != nil {
			return counted(err, from)
		}
	}
	return nil
}

// belongs says which transaction and which trace a context has.
func (o *Outbox) belongs(ctx context.Context, propagator propagation.TextMapPropagator) (tx pgx.Tx,
	trace propagation.MapCarrier, err error,
) {
	trace = propagation.MapCarrier{}
	propagator.Inject(ctx, trace)
	if o.txOf != nil {
		tx, err = o.txOf(ctx)
	}
	return tx, trace, err
}

// sameTx compares, where the type of a transaction can be compared: somebody may have wrapped theirs.
func sameTx(a, b pgx.Tx) bool {
	if a == nil || b == nil {
		return a == b
	}
	return reflect.TypeOf(a).Comparable() && a == b
}

// counted makes the index of a refused event that of the message.
func counted(err error, from int) error {
	var refused *outbox.EventError
	if from > 0 && errors.As(err, &refused) {
		its := *refused
		its.Index += from
		return &its
	}
	return err
}

// Close ends the use of the publisher. The transaction is the caller's, and goes on.
func (o *Outbox) Close() error {
	o.closed.Store(true)
	return nil
}
