package ui

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
	inOutbox = "outbox"
	inInbox  = "inbox"
)

var sides = []string{inOutbox, inInbox}

// page is the length of a list.
const page = 100

// side is the operator of an outbox or of an inbox.
type side interface {
	admin.ParkedOperator
	// list returns events without headers and payloads; reveal returns both, and is audited.
	list(ctx context.Context, f admin.ParkedFilter) ([]event, error)
	reveal(ctx context.Context, id int64, reason string) (event, error)
}

// event is a parked event of either side.
type event struct {
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
func (e event) State() string {
	switch {
	case e.Releasing:
		return "releasing"
	case e.Alone && e.Kind != "quarantined":
		return "alone"
	}
	return e.Kind
}

// side opens an outbox or inbox in a viewer's name.
func (d *database) side(where, consumer, name string) (side, error) {
	if where == inOutbox {
		o, err := d.outbox(name)
		return outboxSide{o}, err
	}
	o, err := d.inbox(consumer, name)
	return inboxSide{o}, err
}

type outboxSide struct{ *operator.Operator }

func (o outboxSide) list(ctx context.Context, f admin.ParkedFilter) (events []event, err error) {
	found, err := o.Parked(ctx, f)
	for i := range found {
		events = append(events, outboxEvent(&found[i]))
	}
	return events, err
}

func (o outboxSide) reveal(ctx context.Context, id int64, reason string) (event, error) {
	e, err := o.RevealParked(ctx, id, reason)
	return outboxEvent(&e), err
}

func outboxEvent(from *operator.ParkedEvent) event {
	e := event{Parked: from.Parked, ContentType: from.ContentType, MaybePublished: from.MaybePublished}
	e.Details = [][2]string{{"Lane", fmt.Sprint(from.Lane)}, {"Source", from.Source}}
	e.Times = []named{{"Appended", from.CreatedAt}, {"Parked", from.ParkedAt}}
	e.Own = audit.Pairs(from.Headers)
	e.Headers = e.Own
	return e
}

type inboxSide struct{ *inboxoperator.Operator }

func (o inboxSide) list(ctx context.Context, f admin.ParkedFilter) (events []event, err error) {
	found, err := o.Parked(ctx, f)
	for i := range found {
		events = append(events, inboxEvent(&found[i]))
	}
	return events, err
}

func (o inboxSide) reveal(ctx context.Context, id int64, reason string) (event, error) {
	e, err := o.RevealParked(ctx, id, reason)
	return inboxEvent(&e), err
}

func inboxEvent(from *inboxoperator.ParkedEvent) event {
	e := event{Parked: from.Parked, Consumer: from.Consumer}
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
