package relay

import (
	"context"
	"maps"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
)

// routes returns the partitions of events, as the publisher would choose them now.
func (r *Relay) routes(ctx context.Context) delivery.Route {
	router, ok := r.to.(Router)
	if !ok {
		return func(e *event.Event) delivery.Place { return delivery.At(e.Topic, 0) }
	}
	partitions := map[string]func(e *event.Event) int32{} // by topic; nil: not known at the moment
	return func(e *event.Event) delivery.Place {
		partition, asked := partitions[e.Topic]
		if !asked {
			var err error
			if partition, err = router.Route(ctx, e.Topic); err != nil {
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

// holdBack holds, before anything is sent, the events that cannot be sent now.
func (r *Relay) holdBack(ctx context.Context, d *delivery.Delivery, grants []lanes.Grant, paused []string) {
	closed := r.health.Closed()
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
func (r *Relay) judge(d *delivery.Delivery, verdicts []error, route delivery.Route, began time.Time, counts bool) (
	refusals bool,
) {
	topics := d.RefusedTopics(verdicts)
	for topic, err := range topics {
		r.closeTopic(topic, err)
	}
	failing, refusals := d.Judge(verdicts, topics, route)
	if counts {
		for _, at := range r.health.Failed(failing, began, time.Now()) {
			r.reportClosed(at, failing[at])
		}
	}
	d.HoldClosed(r.health.Closed(), route)
	return refusals
}

// closeTopic begins to hold a topic.
func (r *Relay) closeTopic(topic string, err error) {
	if r.health.Close(delivery.Whole(topic), time.Now()) {
		r.reportClosed(delivery.Whole(topic), err)
	}
}

// reportClosed reports that events of a place are held from now on.
func (r *Relay) reportClosed(at delivery.Place, err error) {
	r.closed.Store(at, err)
	r.requestBeat() // it shows operators why
	if at.Partition == delivery.WholeTopic {
		r.log.Error("a topic is refused: its events are held, in order, until it is accepted again; others go on",
			"topic", at.Topic, "error", err)
	} else {
		r.log.Error("a partition does not answer while others do: its events are held, in order, until it does",
			"topic", at.Topic, "partition", at.Partition, "error", err)
	}
	if r.cfg.Observer.Closed != nil {
		r.cfg.Observer.Closed(at.Topic, at.Partition, err)
	}
}

// reopen ends the holding of a place: the lanes that hold events for it drain them first.
func (r *Relay) reopen(at delivery.Place) {
	took, was := r.health.Open(at, time.Now())
	if !was {
		return
	}
	r.requestBeat()
	r.log.Info("held events can go again", "topic", at.Topic, "partition", at.Partition, "after",
		took.Round(time.Millisecond))
	if r.cfg.Observer.Reopened != nil {
		r.cfg.Observer.Reopened(at.Topic, at.Partition, took)
	}
	r.lanes.Opened(at.Topic)
	r.kickPumps()
}
