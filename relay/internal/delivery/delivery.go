package delivery

import (
	"cmp"

	"github.com/effectonce/effectonce/event"
)

// From is the table that a claimed event is in.
type From int8

// The tables.
const (
	FromOutbox From = iota
	FromHeld
	FromParked
)

// Fate is a claim's decision about an event (P4).
type Fate int8

// The fates.
const (
	Undecided Fate = iota // to be sent, or sent again
	Acked
	Held
	Parked
)

// Item has the data of a claimed event that are not part of the event.
type Item struct {
	ID             int64 // in the outbox
	From           From
	Fate           Fate
	MaybePublished bool   // an attempt under this number may have reached the broker, now or in an earlier claim
	Alone          bool   // parked, or will be parked, without its key
	Partition      int32  // FromHeld, or Held: of the group
	Cause          *Cause // Parked: why
	Behind         bool   // Parked: it is behind a refused event of its key
	Large          bool   // read in bulk, without its large columns
	At             Row    // read in bulk: the position of its row then
}

// Row is the position of a row: a pgtype.TID.
type Row struct {
	BlockNumber  uint32
	OffsetNumber uint16
	Valid        bool
}

// group returns the partition that an event is held for: its present one, or else the given one.
func (it *Item) group(otherwise int32) int32 {
	if it.From == FromHeld {
		return it.Partition
	}
	return otherwise
}

func (it *Item) hold(partition int32) { it.Fate, it.Partition = Held, it.group(partition) }

// Route returns the place of an event: the topic as a whole if its partition is unknown at the moment.
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

// DropDecided removes the events with a fate from those to be sent.
func (d *Delivery) DropDecided() {
	rest := d.undecided[:0]
	for _, i := range d.undecided {
		if d.items[i].Fate == Undecided {
			rest = append(rest, i)
		}
	}
	d.undecided = rest
}

// Len returns the number of events to be sent.
func (d *Delivery) Len() int { return len(d.undecided) }

// Events returns the events to be sent.
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

// Lanes returns the lanes with events to be sent.
func (d *Delivery) Lanes() map[int16]bool {
	lanes := map[int16]bool{}
	for _, i := range d.undecided {
		lanes[d.events[i].Position.Lane] = true
	}
	return lanes
}

// HoldBack holds, before anything is sent, the events that cannot be sent now: those for a closed place, or after
// events that their lane holds already.
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

// mustHold decides about one event. While the lane has a group for the topic as a whole, all later events of the topic
// join it: so the groups of the partitions are always older, and are sent first.
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
		// Its partition is unknown. No event of the topic may overtake one that a partition's group holds.
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

// Unanswered records that an attempt ended without verdicts: all events may have been sent.
func (d *Delivery) Unanswered() {
	for _, i := range d.undecided {
		d.items[i].MaybePublished = true
	}
}

// Take applies the verdicts of an attempt. It returns the number of acked events, the first error of an unknown
// outcome, and that of an event that was not sent.
func (d *Delivery) Take(verdicts []error) (n int, unknown, unsent error) {
	for k, i := range d.undecided {
		err := verdicts[k]
		if err == nil {
			d.items[i].Fate = Acked
			n++
			continue
		}
		switch {
		case Refused(err) != nil:
		case notSent(err):
			unsent = cmp.Or(unsent, err)
		default:
			unknown = cmp.Or(unknown, err)
			d.items[i].MaybePublished = true
		}
	}
	return n, unknown, unsent
}

// Passed returns an event that the verdicts of an attempt ack, and the first one before it of its key that they do not,
// with its verdict; nil: there is none. The publisher has then broken the order of the key.
func (d *Delivery) Passed(verdicts []error) (acked, before *event.Event, verdict error) {
	type key struct{ topic, tenant, key string }
	first := map[key]int{}
	for k, i := range d.undecided {
		e := &d.events[i]
		its := key{e.Topic, e.Tenant, e.Key}
		at, behind := first[its]
		switch {
		case e.Key == "":
		case verdicts[k] != nil && !behind:
			first[its] = k
		case verdicts[k] == nil && behind:
			return e, &d.events[d.undecided[at]], verdicts[at]
		}
	}
	return nil, nil, nil
}

// Acked returns the places of the last attempt's acks.
func (d *Delivery) Acked(route Route) map[Place]bool {
	places := map[Place]bool{}
	for _, i := range d.undecided {
		if d.items[i].Fate == Acked {
			places[route(&d.events[i])] = true
		}
	}
	return places
}
