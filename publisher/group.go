package publisher

import (
	"context"

	"github.com/effectonce/effectonce/event"
)

// group is a Publish call's events for one partition: indexes into the call's events, in order.
type group struct {
	to    *partition
	order []int32
}

// route is one call's view of a topic.
type route struct {
	parts []*partition
	slots []int32 // group of each partition; -1: none yet
	err   error   // verdict of all its events, if it cannot be sent to
}

// group groups events by partition, in their order, and writes the verdict of events whose topic cannot be sent to. It
// allocates per call and per group, not per event.
func (k *Kafka) group(ctx context.Context, events []event.Event, verdicts []error) []group {
	routes := map[string]*route{}
	slotOf := make([]int32, len(events))
	var groups []group
	var sizes []int32
	var r *route
	last := ""
	for i := range events {
		e := &events[i]
		if r == nil || e.Topic != last {
			r, last = k.route(ctx, routes, events[i:]), e.Topic
		}
		if r.err != nil {
			verdicts[i], slotOf[i] = r.err, -1
			continue
		}
		p := choose(e, len(r.parts))
		slot := r.slots[p]
		if slot < 0 {
			slot = int32(len(groups))
			r.slots[p] = slot
			groups, sizes = append(groups, group{to: r.parts[p]}), append(sizes, 0)
		}
		slotOf[i] = slot
		sizes[slot]++
	}
	slab := make([]int32, len(events))
	for g := range groups {
		groups[g].order, slab = slab[:0:sizes[g]], slab[sizes[g]:]
	}
	for i, slot := range slotOf {
		if slot >= 0 {
			groups[slot].order = append(groups[slot].order, int32(i))
		}
	}
	return groups
}

// route returns the route of the first event's topic.
func (k *Kafka) route(ctx context.Context, routes map[string]*route, events []event.Event) *route {
	name := events[0].Topic
	if r := routes[name]; r != nil {
		return r
	}
	k.wire.learn(name, events)
	r := &route{}
	r.parts, r.err = k.resolve(ctx, k.topic(name))
	r.slots = make([]int32, len(r.parts))
	for i := range r.slots {
		r.slots[i] = -1
	}
	routes[name] = r
	return r
}

// choose returns an event's partition: by its key, or without one by its id, which spreads keyless events and sends a
// repeated event to the same partition.
func choose(e *event.Event, count int) int {
	if e.Key != "" {
		return partitionOf(e.Key, count)
	}
	return partitionOf(e.ID.String(), count)
}
