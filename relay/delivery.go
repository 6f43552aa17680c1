package relay

import (
	"cmp"
	"context"
	"maps"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// source is the table that a claimed event stands in.
type source int8

const (
	fromOutbox source = iota
	fromHeld
	fromParked
)

// fate is what a claim decides for an event (P4).
type fate int8

const (
	undecided fate = iota // to be sent, or sent again
	acked
	held
	parked
)

// item is what a claim knows of an event beside the event itself.
type item struct {
	id        int64 // in the outbox
	from      source
	fate      fate
	sent      bool       // an attempt under this number may have reached the broker, now or in an earlier claim
	alone     bool       // parked, or to be parked, without its key
	partition int32      // fromHeld, or held: of the group
	refusal   *refusal   // parked: why
	behind    bool       // parked: it was not refused itself
	large     bool       // read in bulk, without what makes it large
	at        pgtype.TID // read in bulk: where its row lay then
}

// refusal is the verdict that parks.
type refusal struct{ code, reason string }

// dispatch is the publishing of one claim.
type dispatch struct {
	r      *Relay
	c      *claim
	routes map[string]func(e *event.Event) int32 // by topic; nil: not known at the moment
	todo   []int32                               // undecided ones, in order
	batch  []event.Event                         // of todo
}

func (r *Relay) newDelivery(c *claim) *dispatch {
	d := &dispatch{r: r, c: c, todo: make([]int32, len(c.events))}
	for i := range d.todo {
		d.todo[i] = int32(i)
	}
	d.keepUndecided()
	return d
}

// place is where an event goes.
func (d *dispatch) place(ctx context.Context, e *event.Event) delivery.Place {
	route, known := d.routes[e.Topic]
	if !known {
		if router, ok := d.r.to.(Router); ok {
			var err error
			if route, err = router.Route(ctx, e.Topic); err != nil {
				route = nil
			}
		} else {
			route = func(*event.Event) int32 { return 0 }
		}
		if d.routes == nil {
			d.routes = map[string]func(e *event.Event) int32{}
		}
		d.routes[e.Topic] = route
	}
	if route == nil {
		return delivery.Whole(e.Topic)
	}
	return delivery.At(e.Topic, route(e))
}

// sortOut holds, before anything is sent, what cannot go now: for a closed place, or behind what is held already.
func (d *dispatch) sortOut(ctx context.Context) {
	closed := d.r.health.snapshot()
	if len(d.c.paused) > 0 { // somebody who read earlier may have spoken later
		if closed = maps.Clone(closed); closed == nil {
			closed = map[delivery.Place]bool{}
		}
		for _, topic := range d.c.paused {
			closed[delivery.Whole(topic)] = true
		}
	}
	lanes := make(map[int16]*laneClaim, len(d.c.lanes))
	some := len(closed) > 0
	for i := range d.c.lanes {
		l := &d.c.lanes[i]
		lanes[l.Lane] = l
		some = some || len(l.Groups) > 0
	}
	if !some {
		return
	}
	for i := range d.c.items {
		it, e := &d.c.items[i], &d.c.events[i]
		l := lanes[e.Position.Lane]
		if it.fate != undecided || len(closed) == 0 && len(l.Groups) == 0 {
			continue
		}
		if partition, hold := d.mustHold(ctx, closed, l, it, e); hold {
			it.fate, it.partition = held, partition
		}
	}
	d.keepUndecided()
}

// mustHold decides for one event.
//
// A group of a lane is what it holds for one partition, or for the topic as a whole. While the topic has one as a
// whole, everything of the topic goes there: so what the partitions' groups hold is always older, and goes first.
func (d *dispatch) mustHold(ctx context.Context, closed map[delivery.Place]bool, l *laneClaim, it *item, e *event.Event) (partition int32, hold bool) {
	whole := delivery.Whole(e.Topic)
	if closed[whole] || (it.from != fromHeld && l.Groups.Has(whole)) {
		return it.group(delivery.WholeTopic), true
	}
	at := d.place(ctx, e)
	switch {
	case at.Partition == delivery.WholeTopic:
		// Not known where it goes. Nothing of the topic may go past what some partition's group holds.
		if it.from == fromHeld && it.partition != delivery.WholeTopic {
			return it.partition, false
		}
		return delivery.WholeTopic, l.Groups.HasPartOf(e.Topic)
	case closed[at]:
		return at.Partition, true
	case it.from == fromHeld && it.partition == at.Partition:
		return 0, false
	}
	return at.Partition, l.Groups.Has(at)
}

// group is where an event is held: where it is already, or else as given.
func (it *item) group(otherwise int32) int32 {
	if it.from == fromHeld {
		return it.partition
	}
	return otherwise
}

// take takes the verdicts of an attempt. It returns how many events were acked, and the first reason of an unknown
// outcome and of an event that was not sent.
func (d *dispatch) take(verdicts []error) (n int, unknown, unsent error) {
	for k, i := range d.todo {
		err := verdicts[k]
		if err == nil {
			d.c.items[i].fate = acked
			n++
			continue
		}
		switch _, refused := rejected(err); {
		case refused:
		case notSent(err):
			unsent = cmp.Or(unsent, err)
		default:
			unknown = cmp.Or(unknown, err)
			d.c.items[i].sent = true
		}
	}
	return n, unknown, unsent
}

// ackedPlaces returns where the last attempt was acked.
func (d *dispatch) ackedPlaces(ctx context.Context) map[delivery.Place]bool {
	places := map[delivery.Place]bool{}
	for _, i := range d.todo {
		if d.c.items[i].fate == acked {
			places[d.place(ctx, &d.c.events[i])] = true
		}
	}
	return places
}

// keepUndecided drops what has a fate from what is to be sent.
func (d *dispatch) keepUndecided() {
	rest := d.todo[:0]
	for _, i := range d.todo {
		if d.c.items[i].fate == undecided {
			rest = append(rest, i)
		}
	}
	d.todo = rest
}

// events returns what is to be sent.
func (d *dispatch) events() []event.Event {
	if len(d.todo) == len(d.c.events) {
		return d.c.events
	}
	d.batch = d.batch[:0]
	for _, i := range d.todo {
		d.batch = append(d.batch, d.c.events[i])
	}
	return d.batch
}
