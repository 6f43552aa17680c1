package cycle

import (
	"context"
	"maps"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
)

// routes returns the partitions of events, as the publisher would choose them now.
func (r *Cycle) routes(ctx context.Context) delivery.Route {
	if r.To.Route == nil {
		return func(e *event.Event) delivery.Place { return delivery.At(e.Topic, 0) }
	}
	partitions := map[string]func(e *event.Event) int32{} // by topic; nil: not known at the moment
	return func(e *event.Event) delivery.Place {
		partition, asked := partitions[e.Topic]
		if !asked {
			var err error
			if partition, err = r.To.Route(ctx, e.Topic); err != nil {
				partition = nil
			}
			partitions[e.Topic] = partition
		}
		if partition == nil {
			return delivery.Whole(e.Topic)
		}
		return delivery.At(e.Topic, partition(e))
	}
}

// HoldBack holds, before anything is sent, the events that cannot be sent now.
func (r *Cycle) HoldBack(ctx context.Context, d *delivery.Delivery, grants []lanes.Grant, paused []string) {
	closed := r.Health.Closed()
	if len(paused) > 0 { // the prober may have set an older list since
		both := make(map[delivery.Place]bool, len(closed)+len(paused))
		maps.Copy(both, closed)
		for _, topic := range paused {
			both[delivery.Whole(topic)] = true
		}
		closed = both
	}
	holds := map[int16]delivery.Groups{}
	for i := range grants {
		if g := &grants[i]; len(g.Groups) > 0 {
			holds[g.Lane] = g.Groups
		}
	}
	d.HoldBack(closed, holds, r.routes(ctx))
}

// judge decides the fates of the events that an attempt left without an ack. began is the time of the attempt's start;
// counts is false for an attempt that was cut short, which tells nothing about any place. It reports whether an event
// was refused.
func (r *Cycle) judge(d *delivery.Delivery, verdicts []error, route delivery.Route, began time.Time, counts bool) (
	refusals bool,
) {
	topics := d.RefusedTopics(verdicts)
	for topic, err := range topics {
		r.CloseTopic(topic, err)
	}
	failing, refusals := d.Judge(verdicts, topics, route)
	if counts {
		for _, at := range r.Health.Failed(failing, began, time.Now()) {
			r.reportClosed(at, failing[at])
		}
	}
	d.HoldClosed(r.Health.Closed(), route)
	return refusals
}

// CloseTopic begins to hold a topic.
func (r *Cycle) CloseTopic(topic string, err error) {
	r.Kafka.Answered()
	if r.Health.Close(delivery.Whole(topic), time.Now()) {
		r.reportClosed(delivery.Whole(topic), err)
	}
}

// reportClosed reports that events of a place are held from now on.
func (r *Cycle) reportClosed(at delivery.Place, err error) {
	r.Holds(at, err)
	switch {
	case at.Partition == delivery.WholeTopic:
		r.Log.Error("a topic is refused: its events are held, in order, until it is accepted again; others go on",
			"topic", at.Topic, "error", err)
	case r.Health.Unanswered():
		r.Log.Error("a partition does not answer, and nothing else was to be sent: its events are held, in order, "+
			"until it does", "topic", at.Topic, "partition", at.Partition, "error", err)
	default:
		r.Log.Error("a partition does not answer while others do: its events are held, in order, until it does",
			"topic", at.Topic, "partition", at.Partition, "error", err)
	}
	if r.Observer.Closed != nil {
		r.Observer.Closed(at.Topic, at.Partition, err)
	}
}

// Reopen ends the holding of a place: the lanes that hold events for it drain them first.
func (r *Cycle) Reopen(at delivery.Place) {
	took, was := r.Health.Open(at, time.Now())
	if !was {
		return
	}
	if !r.Health.Unanswered() {
		r.Kafka.Answered()
	}
	r.Signals.Beat()
	r.Log.Info("held events can go again", "topic", at.Topic, "partition", at.Partition, "after",
		took.Round(time.Millisecond))
	if r.Observer.Reopened != nil {
		r.Observer.Reopened(at.Topic, at.Partition, took)
	}
	r.Lanes.Opened(at.Topic)
	r.Signals.Kick()
}
