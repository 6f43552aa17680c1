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
)

// InboxConfig sets an [Inbox]. The zero value is safe.
type InboxConfig struct {
	// ID names the metadata that holds a message's id. Default "ce_id", which our relay writes. Where a message does
	// not have it, its UUID is the id; where it has none either, its place in the log ([InboxConfig.Origin]); otherwise
	// it is refused. An id that is no UUID becomes the UUIDv5 of it and of the metadata "ce_source", or else the topic.
	ID string
	// Key gives a message's key where Origin does not: when a message is parked, the later ones of its key go behind
	// it. An error of it refuses the message. Default: [PartitionKey].
	Key func(topic string, m *message.Message) (string, error)
	// Origin says where the subscriber found a message; false: it does not know. With it a message that kills its
	// process is parked in the end (inbox.Config.CrashAttempts), and what is parked names its place. Default: not
	// known. For watermill-kafka the repository's examples/watermill has the function.
	Origin func(m *message.Message) (Origin, bool)
}

// Origin is where in Kafka a message was read.
type Origin struct {
	Key       []byte    // of the record; empty: InboxConfig.Key decides
	Partition int32     // Messages of a partition must come one after the other.
	Offset    int64     // counts up within the partition
	Time      time.Time // the record's timestamp; zero: now, which inbox.ByOffset does not take
}

// Inbox runs handlers of Watermill's router once per message, for one consumer: the message's id and what the handler
// did are committed together. Handlers of several topics may share it. Two handlers of one topic need one each, over
// inboxes with names of their own, or each message would reach only one of them. Run the inbox.Inbox beside the router,
// for its days and for what operators release.
//
// What is returned to the router, and so acknowledged or not:
//
//   - nil, and so Ack, when the message is decided: applied (committed), a duplicate (the handler does not run),
//     skipped (inbox.Skip), parked, or quarantined for its age. These are the outcomes of package inbox, with all that
//     it says of them.
//   - an error, and so Nack, when it is not: the context of the message ended, the inbox is set to halt, the handler
//     returned messages, or the message has no id.
//
// A handler that fails is run again by the inbox, which then parks the message. Middlewares around it that take an
// error for the end of a message (Watermill's PoisonQueue, IgnoreErrors) acknowledge what was not decided, and Retry
// within it runs a handler again in a transaction that has failed, or that still has what the first attempt wrote:
// leave them out. Add this middleware last, so that it is next to the handler.
type Inbox struct {
	in  *inbox.Inbox
	cfg InboxConfig

	mu     sync.Mutex
	taken  map[string]string // by topic: the handler of a router that uses it
	after  map[place]int64   // by partition: the offset behind the last one that came
	offset atomic.Int64      // of the last message that has none of its own
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// unknownPartition is where messages stand whose subscriber does not know it.
const unknownPartition = -1

// NewInbox returns what runs a router's handler in in.
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
	return &Inbox{in: in, cfg: cfg, taken: map[string]string{}, after: map[place]int64{}}, nil
}

// Handle makes do a handler that runs in the inbox, for Router.AddConsumerHandler. tx is the one that [Tx] returns.
func (i *Inbox) Handle(do func(m *message.Message, tx pgx.Tx) error) message.NoPublishHandlerFunc {
	h := i.Middleware(func(m *message.Message) ([]*message.Message, error) {
		tx, err := Tx(m.Context())
		if err != nil {
			return nil, err
		}
		return nil, do(m, tx)
	})
	return func(m *message.Message) error {
		_, err := h(m)
		return err
	}
}

// Middleware runs the handler in the inbox. It gets a copy of the message, whose Ack and Nack do nothing and whose
// context has [Tx] and [Event]; a message that an operator released comes without the router's values in its context.
//
// A handler must not return messages: the router would publish them when the transaction is over, so that a crash in
// between loses them. It is an error, and nothing is committed: publish with [NewOutbox] or [NewOutboxFromContext]
// instead.
func (i *Inbox) Middleware(next message.HandlerFunc) message.HandlerFunc {
	w := &wrapped{Inbox: i, next: next}
	w.handler = i.in.Each(w.effect)
	return w.handle
}

// wrapped is one handler in the inbox.
type wrapped struct {
	*Inbox
	next    message.HandlerFunc
	handler inbox.Handler
}

// delivery is a message on its way through the inbox.
type delivery struct {
	event   event.Event
	message *message.Message
	refuse  context.CancelCauseFunc // ends it undecided
}

type deliveryKey struct{}

// errReturned is a mistake in the program, which must not park a message.
var errReturned = errors.New("watermill: a handler in an inbox must not return messages, for they would be published " +
	"outside of " +
	"its transaction: publish them with NewOutbox or NewOutboxFromContext; nothing was committed")

// handle is the handler that the router gets.
func (w *wrapped) handle(m *message.Message) ([]*message.Message, error) {
	topic := message.SubscribeTopicFromCtx(m.Context())
	if topic == "" {
		return nil, errors.New("watermill: this message has no topic in its context: use the inbox within a router " +
			"of Watermill")
	}
	if err := w.claim(topic, message.HandlerNameFromCtx(m.Context())); err != nil {
		return nil, err
	}
	e, err := w.event(topic, m)
	if err != nil {
		return nil, fmt.Errorf("watermill: message %.64q of %s: %w", m.UUID, topic, err)
	}
	w.follow(e.Position, topic)
	ctx, cancel := context.WithCancelCause(m.Context())
	defer cancel(nil)
	ctx = context.WithValue(ctx, deliveryKey{}, &delivery{e, m, cancel})
	outcomes, err := w.handler.Handle(ctx, []event.Event{e})
	switch {
	case len(outcomes) == 1 && outcomes[0] != inbox.Undecided:
		return nil, nil
	case errors.Is(context.Cause(ctx), errReturned):
		return nil, errReturned
	case err == nil:
		return nil, errors.New("watermill: the inbox left the message undecided")
	}
	return nil, err
}

// claim makes a topic that of one handler of the router.
func (w *wrapped) claim(topic, handler string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	is, taken := w.taken[topic]
	if !taken {
		w.taken[topic] = handler
	}
	if taken && is != handler {
		return fmt.Errorf("watermill: the handlers %q and %q of topic %s share the inbox of consumer %q, so each "+
			"message would reach one of them: "+
			"give each handler an inbox with a name of its own", is, handler, topic, w.in.Consumer())
	}
	return nil
}

// follow tells the inbox that a partition was assigned, as a consumer does. No subscriber says so: an offset that is
// not the one behind the last may be the first after an assignment.
func (w *wrapped) follow(at event.Position, topic string) {
	if at.Partition == unknownPartition {
		return
	}
	w.mu.Lock()
	p := place{topic, at.Partition}
	next, known := w.after[p]
	w.after[p] = at.Offset + 1
	w.mu.Unlock()
	if !known || next != at.Offset {
		w.handler.Assigned(topic, at.Partition)
	}
}

// effect runs the handler, for a message that came or for one that an operator released.
func (w *wrapped) effect(ctx context.Context, tx pgx.Tx, e event.Event) error {
	var m *message.Message
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	if d != nil && d.event.ID == e.ID {
		m = d.message.Copy()
	} else {
		d = nil
		m = released(&e)
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
		d.refuse(errReturned)
		return errReturned
	}
	return inbox.Terminal("messages_returned", errReturned)
}
