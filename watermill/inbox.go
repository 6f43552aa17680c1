package watermill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
)

// InboxConfig sets an [Inbox]. The zero value is safe.
type InboxConfig struct {
	// ID is the name of the metadata that holds a message's id. Default "ce_id", which the relay writes. A message
	// without it is identified by its UUID, else by its place in the log ([InboxConfig.Origin]), else refused. An id
	// that is not a UUID becomes the UUIDv5 of it and of the metadata "ce_source", or else the topic.
	ID string
	// Key returns a message's key if Origin does not: a parked message blocks the later ones of its key. An error
	// refuses the message. Default: [PartitionKey].
	Key func(topic string, m *message.Message) (string, error)
	// Origin returns a message's place in Kafka; false: the place is unknown. With it a message that kills its process
	// is parked in the end (inbox.Config.CrashAttempts), and a parked message has its place. Default: unknown. The
	// function for watermill-kafka stands in the repository's examples/watermill.
	Origin func(m *message.Message) (Origin, bool)
}

// Origin is a message's place in Kafka.
type Origin struct {
	Key       []byte    // of the record; empty: InboxConfig.Key decides
	Partition int32     // its messages must come one after the other
	Offset    int64     // rises within the partition
	Time      time.Time // the record's timestamp; zero: now, which inbox.ByOffset does not take
}

// Inbox runs handlers of Watermill's router once per message, for one consumer: the message's id and the handler's
// writes are committed together. Handlers of several topics may share an Inbox. Two handlers of one topic need an Inbox
// each, over inboxes with different names, or a message would reach only one of them. Run the inbox.Inbox beside the
// router: it makes and drops days and runs released messages.
//
// The router gets
//
//   - nil, and acks, when the message is decided: applied (committed), a duplicate (the handler does not run), skipped
//     (inbox.Skip), parked, or quarantined for its age, see package inbox;
//   - an error, and nacks, when it is not: the message's context ended, the inbox is set to halt, the handler returned
//     messages, or the message has no id.
//
// The inbox retries a handler that fails, and parks the message in the end. Add this middleware last, next to the
// handler, and leave out those that end a message at an error (Watermill's PoisonQueue, IgnoreErrors), for they ack
// undecided messages, and a Retry within it, for it runs the handler again in the failed transaction.
type Inbox struct {
	in  *inbox.Inbox
	cfg InboxConfig

	mu         sync.Mutex
	handlers   map[string]string        // the router's handler of each topic
	nextOffset map[topicPartition]int64 // expected, unless the partition was assigned anew

	lastLocalOffset atomic.Int64 // of messages whose place is unknown, see newLocalOffset
}

type topicPartition struct {
	topic     string
	partition int32
}

// unknownPartition is the partition of messages whose place is unknown.
const unknownPartition = -1

// NewInbox returns an Inbox over in.
func NewInbox(in *inbox.Inbox, cfg InboxConfig) (*Inbox, error) {
	if in == nil {
		return nil, errors.New("watermill: NewInbox needs an *inbox.Inbox")
	}
	if cfg.ID == "" {
		cfg.ID = event.HeaderID
	}
	if cfg.Key == nil {
		cfg.Key = PartitionKey
	}
	if cfg.Origin == nil {
		cfg.Origin = func(*message.Message) (Origin, bool) { return Origin{}, false }
	}
	return &Inbox{in: in, cfg: cfg, handlers: map[string]string{}, nextOffset: map[topicPartition]int64{}}, nil
}

// Handle runs handler in the inbox, for Router.AddConsumerHandler. tx is the transaction that [Tx] returns.
func (i *Inbox) Handle(handler func(m *message.Message, tx pgx.Tx) error) message.NoPublishHandlerFunc {
	h := i.Middleware(func(m *message.Message) ([]*message.Message, error) {
		tx, err := Tx(m.Context())
		if err != nil {
			return nil, err
		}
		return nil, handler(m, tx)
	})
	return func(m *message.Message) error {
		_, err := h(m)
		return err
	}
}

// Middleware runs the handler in the inbox. The handler gets a copy of the message, whose Ack and Nack do nothing and
// whose context has [Tx] and [Event]. The context of a released message has no values of the router.
//
// A handler that returns messages fails, and nothing is committed: the router would publish them after the commit, and
// a crash in between would lose them. Publish with [NewOutbox] or [NewOutboxFromContext] instead.
func (i *Inbox) Middleware(next message.HandlerFunc) message.HandlerFunc {
	w := &wrappedHandler{Inbox: i, next: next}
	w.handler = i.in.Each(w.effect)
	return w.handle
}

// wrappedHandler is a router's handler that runs in the inbox.
type wrappedHandler struct {
	*Inbox
	next    message.HandlerFunc
	handler inbox.Handler
}

// delivery is a message that the inbox is handling, in the context of its effect.
type delivery struct {
	event   event.Event
	message *message.Message
	cancel  context.CancelCauseFunc // leaves the message undecided
}

type deliveryKey struct{}

// errMessagesReturned is a mistake in the program, so it parks no message that the router can nack.
var errMessagesReturned = errors.New("watermill: a handler in an inbox must not return messages, for they would be " +
	"published outside its transaction: publish them with NewOutbox or NewOutboxFromContext; nothing was committed")

// handle is the handler that the router runs.
func (w *wrappedHandler) handle(m *message.Message) ([]*message.Message, error) {
	topic := message.SubscribeTopicFromCtx(m.Context())
	if topic == "" {
		return nil, errors.New("watermill: the message's context has no topic: use the inbox within a router of " +
			"Watermill")
	}
	if err := w.registerHandler(topic, message.HandlerNameFromCtx(m.Context())); err != nil {
		return nil, err
	}
	e, err := w.decode(topic, m)
	if err != nil {
		return nil, fmt.Errorf("watermill: message %.64q of %s: %w", m.UUID, topic, err)
	}
	w.noteAssignment(topic, e.Position)
	ctx, cancel := context.WithCancelCause(m.Context())
	defer cancel(nil)
	ctx = context.WithValue(ctx, deliveryKey{}, &delivery{e, m, cancel})
	outcomes, err := w.handler.Handle(ctx, []event.Event{e})
	switch {
	case len(outcomes) == 1 && outcomes[0] != inbox.Undecided:
		return nil, nil
	case errors.Is(context.Cause(ctx), errMessagesReturned):
		return nil, errMessagesReturned
	case err == nil:
		return nil, errors.New("watermill: the inbox left the message undecided")
	}
	return nil, err
}

// registerHandler returns an error if the topic has another handler already.
func (w *wrappedHandler) registerHandler(topic, handler string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, known := w.handlers[topic]
	if !known {
		w.handlers[topic] = handler
	}
	if known && first != handler {
		return fmt.Errorf("watermill: the handlers %q and %q of topic %s share the inbox of consumer %q, so a message "+
			"would reach only one of them: give each an inbox with a name of its own", first, handler, topic,
			w.in.Consumer())
	}
	return nil
}

// noteAssignment tells the inbox that a partition was assigned, as a consumer does. Subscribers do not report
// assignments, but an offset that does not follow the last one may be the first after one.
func (w *wrappedHandler) noteAssignment(topic string, at event.Position) {
	if at.Partition == unknownPartition {
		return
	}
	w.mu.Lock()
	p := topicPartition{topic, at.Partition}
	next, known := w.nextOffset[p]
	w.nextOffset[p] = at.Offset + 1
	w.mu.Unlock()
	if !known || next != at.Offset {
		w.handler.Assigned(topic, at.Partition)
	}
}

// effect runs the handler for a message of the router, or for one that an operator released.
func (w *wrappedHandler) effect(ctx context.Context, tx pgx.Tx, e event.Event) error {
	var m *message.Message
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	if d != nil && d.event.ID == e.ID {
		m = d.message.Copy()
	} else {
		d = nil
		m = releasedMessage(&e)
	}
	ctx = context.WithValue(WithTx(ctx, tx), eventKey{}, e)
	m.SetContext(ctx)
	produced, err := w.next(m)
	switch {
	case err != nil:
		return err
	case len(produced) == 0:
		return nil
	case d != nil:
		d.cancel(errMessagesReturned)
		return errMessagesReturned
	}
	return outcome.Terminal("messages_returned", errMessagesReturned)
}
