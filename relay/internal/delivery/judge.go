package delivery

import "github.com/effectonce/effectonce/event"

// RefusedTopics returns the topics that the verdicts of an attempt refuse as a whole, each with one of the verdicts.
func (d *Delivery) RefusedTopics(verdicts []error) map[string]error {
	topics := map[string]error{}
	for k, i := range d.undecided {
		if r := Refused(verdicts[k]); r != nil && r.Topic && topics[d.events[i].Topic] == nil {
			topics[d.events[i].Topic] = verdicts[k]
		}
	}
	return topics
}

// lanePlace is the unit of order: one lane's events for one place.
type lanePlace struct {
	lane int16
	Place
}

// Judge decides the fates of the events that an attempt left without an ack, by the table of P4, but for those that
// must be sent again. It returns the places of these, each with a verdict, and whether any event was refused.
func (d *Delivery) Judge(verdicts []error, topics map[string]error, route Route) (failing map[Place]error,
	refusals bool,
) {
	refusedAt := map[lanePlace][]int32{}
	failing = map[Place]error{}
	for k, i := range d.undecided {
		it, e := &d.items[i], &d.events[i]
		if it.Fate == Acked {
			continue
		}
		refused := Refused(verdicts[k])
		it.MaybePublished = it.MaybePublished || refused != nil && refused.MaybePublished
		if topics[e.Topic] != nil {
			it.hold(WholeTopic)
			continue
		}
		at := route(e)
		lp := lanePlace{e.Position.Lane, at}
		if refused != nil {
			it.Fate, it.Cause = Parked, causeOf(verdicts[k])
			refusedAt[lp] = append(refusedAt[lp], i)
			continue
		}
		if before := refusedAt[lp]; len(before) > 0 {
			d.follow(before, it, e, at)
			continue
		}
		if _, seen := failing[at]; !seen {
			failing[at] = verdicts[k]
		}
	}
	return failing, len(topics)+len(refusedAt) > 0
}

// follow is the fate of an event after refused ones of its lane and partition: it is parked with its key, or held
// until they are parked. If it were sent now, the refused event could be written after it, after a take-over.
func (d *Delivery) follow(before []int32, it *Item, e *event.Event, at Place) {
	for _, i := range before {
		first, its := &d.events[i], &d.items[i]
		if !it.Alone && !its.Alone && first.Tenant == e.Tenant && first.Key == e.Key {
			it.Fate, it.Cause, it.Behind = Parked, its.Cause, true
			return
		}
	}
	it.hold(at.Partition)
}

// HoldClosed holds the undecided events for closed places.
func (d *Delivery) HoldClosed(closed map[Place]bool, route Route) {
	if len(closed) == 0 {
		return
	}
	for _, i := range d.undecided {
		it, e := &d.items[i], &d.events[i]
		if it.Fate != Undecided {
			continue
		}
		if closed[Whole(e.Topic)] {
			it.hold(WholeTopic)
		} else if at := route(e); closed[at] {
			it.hold(at.Partition)
		}
	}
}

// NoteOvertaken marks events that are held for a topic as a whole while a later event of their lane and topic was
// acked. Under another partition count such an event may follow the later one, with a lower number: like an event that
// may have been sent, it makes the acceptance of that count uncertain. moves are the lanes with events that were not
// acked.
func NoteOvertaken(events []event.Event, items []Item, moves map[int16]bool) {
	passed := map[int16]map[string]bool{}
	for i := len(items) - 1; i >= 0; i-- {
		it, e := &items[i], &events[i]
		switch {
		case !moves[e.Position.Lane]:
		case it.Fate == Acked:
			if passed[e.Position.Lane] == nil {
				passed[e.Position.Lane] = map[string]bool{}
			}
			passed[e.Position.Lane][e.Topic] = true
		case it.Fate == Held && it.Partition == WholeTopic:
			it.MaybePublished = it.MaybePublished || passed[e.Position.Lane][e.Topic]
		}
	}
}
