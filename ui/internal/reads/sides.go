package reads

import (
	"context"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/admin"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/operator"
)

// The sides of a database with parked events.
const (
	InOutbox = "outbox"
	InInbox  = "inbox"
)

// Sides lists them.
var Sides = []string{InOutbox, InInbox}

// Page is the length of a list.
const Page = 100

// Side is the operator of an outbox or of an inbox.
type Side interface {
	admin.ParkedOperator
	// List returns events without headers and payloads; Reveal returns both, and is audited.
	List(ctx context.Context, f admin.ParkedFilter) ([]Event, error)
	Reveal(ctx context.Context, id int64, reason string) (Event, error)
}

// Event is a parked event of either side.
type Event struct {
	admin.Parked
	Consumer       string
	ContentType    string
	MaybePublished bool // an attempt may have reached Kafka
	Details        [][2]string
	Times          []named // its history
	Headers        [][2]string
	Own            [][2]string // the headers that the producer chose
}

type named struct {
	Name string
	At   time.Time
}

// State returns what the event waits for, in a word.
func (e Event) State() string {
	switch {
	case e.Releasing:
		return "releasing"
	case e.Alone && e.Kind != "quarantined":
		return "alone"
	}
	return e.Kind
}

// Side opens an outbox or inbox in a viewer's name.
func (d *Database) Side(where, consumer, name string) (Side, error) {
	if where == InOutbox {
		o, err := d.Outbox(name)
		return outboxSide{o}, err
	}
	o, err := d.Inbox(consumer, name)
	return inboxSide{o}, err
}

type outboxSide struct{ *operator.Operator }

func (o outboxSide) List(ctx context.Context, f admin.ParkedFilter) (events []Event, err error) {
	found, err := o.Parked(ctx, f)
	for i := range found {
		events = append(events, outboxEvent(&found[i]))
	}
	return events, err
}

func (o outboxSide) Reveal(ctx context.Context, id int64, reason string) (Event, error) {
	e, err := o.RevealParked(ctx, id, reason)
	return outboxEvent(&e), err
}

func outboxEvent(from *operator.ParkedEvent) Event {
	e := Event{Parked: from.Parked, ContentType: from.ContentType, MaybePublished: from.MaybePublished}
	e.Details = [][2]string{{"Lane", fmt.Sprint(from.Lane)}, {"Source", from.Source}}
	e.Times = []named{{"Appended", from.CreatedAt}, {"Parked", from.ParkedAt}}
	e.Own = audit.Pairs(from.Headers)
	e.Headers = e.Own
	return e
}

type inboxSide struct{ *inboxoperator.Operator }

func (o inboxSide) List(ctx context.Context, f admin.ParkedFilter) (events []Event, err error) {
	found, err := o.Parked(ctx, f)
	for i := range found {
		events = append(events, inboxEvent(&found[i]))
	}
	return events, err
}

func (o inboxSide) Reveal(ctx context.Context, id int64, reason string) (Event, error) {
	e, err := o.RevealParked(ctx, id, reason)
	return inboxEvent(&e), err
}

func inboxEvent(from *inboxoperator.ParkedEvent) Event {
	e := Event{Parked: from.Parked, Consumer: from.Consumer}
	e.Details = [][2]string{
		{"Partition", fmt.Sprintf("%s/%d", from.Topic, from.Partition)}, {"Offset", fmt.Sprint(from.Offset)},
	}
	e.Times = []named{{"Happened", from.Time}, {"Parked", from.ParkedAt}}
	e.ContentType, e.Own = audit.OwnHeaders(from.Headers)
	for _, h := range from.Headers {
		e.Headers = append(e.Headers, [2]string{h.Key, string(h.Value)})
	}
	return e
}
