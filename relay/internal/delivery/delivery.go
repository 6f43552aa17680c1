package delivery

import (
	"cmp"

	"github.com/effectonce/effectonce/event"
)

// Source is the table that a claimed event stands in.
type Source int8

// The tables.
const (
	FromOutbox Source = iota
	FromHeld
	FromParked
)

// Fate is what a claim decides for an event (P4).
type Fate int8

// The fates.
const (
	Undecided Fate = iota // to be sent, or sent again
	Acked
	Held
	Parked
)

// Item is what a claim knows of an event beside the event itself.
type Item struct {
	ID        int64 // in the outbox
	From      Source
	Fate      Fate
	Sent      bool     // an attempt under this number may have reached the broker, now or in an earlier claim
	Alone     bool     // parked, or to be parked, without its key
	Partition int32    // FromHeld, or Held: of the group
	Refusal   *Refusal // Parked: why
	Behind    bool     // Parked: it was not refused itself
	Large     bool     // read in bulk, without what makes it large
	At        Row      // read in bulk: where its row lay then
}

// Row is where a row lies: a pgtype.TID.
type Row struct {
	BlockNumber  uint32
	OffsetNumber uint16
	Valid        bool
}

// group is where an event is held: where it is already, or else as given.
func (it *Item) group(otherwise int32) int32 {
	if it.From == FromHeld {
		return it.Partition
	}
	return otherwise
}

func (it *Item) hold(partition int32) { it.Fate, it.Partition = Held, it.group(partition) }

// Route tells where an event goes: to the topic as a whole where that is not known at the moment.
type Route func(e *event.Event) Place

// Delivery is the publishing of a claim's events until each has its fate.
type Delivery struct {
	events    []event.Event
	items     []Item
	undecided []int32       // in order
	batch     []event.Event // of undecided
}

// New begins the delivery of events, each with its item.
func New(events []event.Event, items []Item) *Delivery {
	d := &Delivery{events: events, items: items, undecided: make([]int32, len(events))}
	for i := range d.undecided {
		d.undecided[i] = int32(i)
	}
	d.DropDecided()
	return d
}

// DropDecided drops what has a fate from what is to be sent.
func (d *Delivery) DropDecided() {
	rest := d.undecided[:0]
	for _, i := range d.undecided {
		if d.items[i].Fate == Undecided {
			rest = append(rest, i)
		}
	}
	d.undecided = rest
}

// Len is how many events are to be sent.
func (d *Delivery) Len() int { return len(d.undecided) }

// Events returns what is to be sent.
func (d *Delivery) Events() []event.Event {
	if len(d.undecided) == len(d.events) {
		return d.events
	}
	d.batch = d.batch[:0]
	for _, i := range d.undecided {
		d.batch = append(d.batch, d.events[i])
	}
	return d.batch
}

// Lanes are those with events that are to be sent.
func (d *Delivery) Lanes() map[int16]bool {
	lanes := map[int16]bool{}
	for _, i := range d.undecided {
		lanes[d.events[i].Position.Lane] = true
	}
	return lanes
}

// HoldBack holds, before anything is sent, what cannot go now: for a closed place, or behind what its lane holds
// already.
func (d *Delivery) HoldBack(closed map[Place]bool, holds map[int16]Groups, route Route) {
	if len(closed) == 0 && len(holds) == 0 {
		return
	}
	for _, i := range d.undecided {
		it, e := &d.items[i], &d.events[i]
		groups := holds[e.Position.Lane]
		if len(closed) == 0 && len(groups) == 0 {
			continue
		}
		if partition, hold := mustHold(closed, groups, it, e, route); hold {
			it.Fate, it.Partition = Held, partition
		}
	}
	d.DropDecided()
}

// mustHold decides for one event. While the topic has a group as a whole, everything of the topic goes there: so what
// the partitions' groups hold is always older, and goes first.
func mustHold(closed map[Place]bool, groups Groups, it *Item, e *event.Event, route Route) (partition int32,
	hold bool,
) {
	whole := Whole(e.Topic)
	if closed[whole] || it.From != FromHeld && groups.Has(whole) {
		return it.group(WholeTopic), true
	}
	at := route(e)
	switch {
	case at.Partition == WholeTopic:
		// Not known where it goes. Nothing of the topic may go past what some partition's group holds.
		if it.From == FromHeld && it.Partition != WholeTopic {
			return it.Partition, false
		}
		return WholeTopic, groups.HasPartOf(e.Topic)
	case closed[at]:
		return at.Partition, true
	case it.From == FromHeld && it.Partition == at.Partition:
		return 0, false
	}
	return at.Partition, groups.Has(at)
}

// Unanswered notes that an attempt ended without verdicts: everything may have been sent.
func (d *Delivery) Unanswered() {
	for _, i := range d.undecided {
		d.items[i].Sent = true
	}
}

// Take takes the verdicts of an attempt. It returns how many events were acked, and the first reason of an unknown
// outcome and of an event that was not sent.
func (d *Delivery) Take(verdicts []error) (n int, unknown, unsent error) {
	for k, i := range d.undecided {
		err := verdicts[k]
		if err == nil {
			d.items[i].Fate = Acked
			n++
			continue
		}
		switch _, refused := Rejected(err); {
		case refused:
		case notSent(err):
			unsent = cmp.Or(unsent, err)
		default:
			unknown = cmp.Or(unknown, err)
			d.items[i].Sent = true
		}
	}
	return n, unknown, unsent
}

// Acked returns where the last attempt was acked.
func (d *Delivery) Acked(route Route) map[Place]bool {
	places := map[Place]bool{}
	for _, i := range d.undecided {
		if d.items[i].Fate == Acked {
			places[route(&d.events[i])] = true
		}
	}
	return places
}
