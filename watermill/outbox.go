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

// DefaultType is the type of an event whose message has none.
const DefaultType = "watermill.message"

// OutboxConfig sets an [Outbox]. The zero value is ready.
type OutboxConfig struct {
	// Appender writes the events, see package outbox.
	Appender outbox.Appender
	// Key returns a message's key: messages of one key are published and applied in the order in which they were
	// appended; empty: no order. Functions of the type watermill-kafka's GeneratePartitionKey fit. An error refuses the
	// message. Default: [PartitionKey].
	Key func(topic string, m *message.Message) (string, error)
	// Type is the type of events whose message has neither the metadata "ce_type" nor "name". Default: [DefaultType].
	Type string
}

// Outbox is a message.Publisher that appends to the outbox within a transaction: a relay publishes the messages if it
// commits. Make one for each transaction with [NewOutbox] or [NewOutboxSQL], or one for all with
// [NewOutboxFromContext].
type Outbox struct {
	cfg    OutboxConfig
	mu     *sync.Mutex // a transaction runs one statement at a time; nil if transactions come from contexts
	closed atomic.Bool
	// appendEvents appends in the Outbox's transaction, or in that of ctx.
	appendEvents func(ctx context.Context, events []event.Event) error
	// txFrom returns a context's transaction; nil: the Outbox has one for all messages.
	txFrom func(ctx context.Context) (pgx.Tx, error)
}

var _ message.Publisher = (*Outbox)(nil)

// NewOutbox returns a publisher to the outbox within tx. It replaces forwarder.NewPublisher over a publisher of
// watermill-sql. Close is optional.
func NewOutbox(tx pgx.Tx, cfg OutboxConfig) (*Outbox, error) {
	if tx == nil {
		return nil, errors.New("watermill: tx is nil: publish within the transaction of the business change")
	}
	o := newOutbox(cfg)
	o.mu = new(sync.Mutex)
	o.appendEvents = func(ctx context.Context, events []event.Event) error {
		return o.cfg.Appender.Append(ctx, tx, events...)
	}
	return o, nil
}

// NewOutboxSQL is [NewOutbox] for a transaction of database/sql: *sql.Tx, or a type that embeds it.
func NewOutboxSQL(tx outbox.SQLTx, cfg OutboxConfig) (*Outbox, error) {
	if tx == nil {
		return nil, errors.New("watermill: tx is nil: publish within the transaction of the business change")
	}
	o := newOutbox(cfg)
	o.mu = new(sync.Mutex)
	o.appendEvents = func(ctx context.Context, events []event.Event) error {
		return o.cfg.Appender.AppendSQL(ctx, tx, events...)
	}
	return o, nil
}

// NewOutboxFromContext returns a publisher that takes the transaction from each message's context, see [Tx] and
// [WithTx], for publishers that are made once, such as that of an event bus of Watermill's package cqrs. Messages with
// the context of an [Inbox] handler's message are committed with the handler's effect.
func NewOutboxFromContext(cfg OutboxConfig) *Outbox {
	o := newOutbox(cfg)
	o.txFrom = Tx
	o.appendEvents = func(ctx context.Context, events []event.Event) error {
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

// errConsumedUUID: two events of one id are one to every consumer that reads both.
var errConsumedUUID = errors.New("it has the UUID of the message that is handled, and an inbox that reads both would " +
	"drop one: give it a new one, or one that follows from that message: event.Derive")

// Publish appends the messages in their order and does not change them. An event's trace is that of its message's
// context; the first message's context bounds the statement. The error for a refused message has its index from 0 (an
// [*outbox.EventError] if its event is not valid); roll the transaction back after any error.
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
		if d, ok := m.Context().Value(deliveryKey{}).(*delivery); ok && d.event.ID == events[i].ID {
			return fmt.Errorf("watermill: message %d (%.64q): %w", i, m.UUID, errConsumedUUID)
		}
	}
	if o.mu != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
	}
	return o.append(messages, events)
}

// append runs one statement for each run of messages with the same trace and transaction.
func (o *Outbox) append(messages []*message.Message, events []event.Event) error {
	var propagator propagation.TextMapPropagator = propagation.TraceContext{}
	if p := o.cfg.Appender.Propagator; p != nil {
		propagator = p
	}
	for from, to := 0, 0; from < len(messages); from = to {
		ctx := messages[from].Context()
		tx, trace, err := o.txAndTrace(ctx, propagator)
		if err != nil {
			return fmt.Errorf("message %d: %w", from, err)
		}
		for to++; to < len(messages); to++ {
			nextTx, nextTrace, err := o.txAndTrace(messages[to].Context(), propagator)
			if err != nil || !sameTx(nextTx, tx) || !maps.Equal(nextTrace, trace) {
				break
			}
		}
		if err := o.appendEvents(ctx, events[from:to]); err != nil {
			return addToIndex(err, from)
		}
	}
	return nil
}

func (o *Outbox) txAndTrace(ctx context.Context, propagator propagation.TextMapPropagator) (tx pgx.Tx,
	trace propagation.MapCarrier, err error,
) {
	trace = propagation.MapCarrier{}
	propagator.Inject(ctx, trace)
	if o.txFrom != nil {
		tx, err = o.txFrom(ctx)
	}
	return tx, trace, err
}

// sameTx reports whether a and b are one transaction; false for a type, such as a caller's wrapper, that == panics on.
func sameTx(a, b pgx.Tx) bool {
	if a == nil || b == nil {
		return a == b
	}
	return reflect.TypeOf(a).Comparable() && a == b
}

// addToIndex turns the index of a refused event into that of its message.
func addToIndex(err error, from int) error {
	var refused *outbox.EventError
	if from > 0 && errors.As(err, &refused) {
		shifted := *refused
		shifted.Index += from
		return &shifted
	}
	return err
}

// Close makes later calls of Publish fail. It does not end the transaction.
func (o *Outbox) Close() error {
	o.closed.Store(true)
	return nil
}
