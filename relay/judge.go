package relay

import (
	"context"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// lanePlace is where order is kept: one lane's events for one place.
type lanePlace struct {
	lane int16
	delivery.Place
}

// judge gives the events that an attempt left without an ack their fates, by the table of P4. began is when the attempt
// did; counts is false when it was cut short, which says nothing about any place. It reports whether anything was
// refused.
func (d *dispatch) judge(ctx context.Context, verdicts []error, began time.Time, counts bool) (refusals bool) {
	topics := map[string]bool{}
	for k := range d.todo {
		if scope, refused := rejected(verdicts[k]); refused && scope == scopeTopic {
			topic := d.c.events[d.todo[k]].Topic
			if !topics[topic] {
				topics[topic] = true
				d.r.closeTopic(topic, verdicts[k])
			}
		}
	}
	refusedAt := map[lanePlace][]int32{}
	failing := map[delivery.Place]error{}
	for k, i := range d.todo {
		it, e := &d.c.items[i], &d.c.events[i]
		if it.fate == acked {
			continue
		}
		if topics[e.Topic] {
			it.sent = it.sent || maybeWritten(verdicts[k])
			it.fate, it.partition = held, it.group(delivery.WholeTopic)
			continue
		}
		at := d.place(ctx, e)
		lp := lanePlace{e.Position.Lane, at}
		if _, refused := rejected(verdicts[k]); refused {
			d.park(it, verdicts[k])
			refusedAt[lp] = append(refusedAt[lp], i)
			continue
		}
		if before := refusedAt[lp]; len(before) > 0 {
			d.standBehind(before, it, e, at)
			continue
		}
		if _, seen := failing[at]; !seen {
			failing[at] = verdicts[k]
		}
	}
	if counts {
		for _, at := range d.r.health.fail(failing, began) {
			d.r.closed(at, failing[at])
		}
	}
	d.holdClosed(ctx)
	return len(topics)+len(refusedAt) > 0
}

// park is the fate of an event that was refused for certain.
func (d *dispatch) park(it *item, err error) {
	it.sent = it.sent || maybeWritten(err)
	code, reason := reasonOf(err)
	it.fate, it.refusal = parked, &refusal{code, reason}
}

// standBehind is the fate of an event behind refused ones of its lane and partition: with its key it is parked, else it
// waits until they are. Sent now, it could be written, and after a take-over the refused one be written after it.
func (d *dispatch) standBehind(before []int32, it *item, e *event.Event, at delivery.Place) {
	for _, i := range before {
		first, its := &d.c.events[i], &d.c.items[i]
		if !it.alone && !its.alone && first.Tenant == e.Tenant && first.Key == e.Key {
			it.fate, it.refusal, it.behind = parked, its.refusal, true
			return
		}
	}
	it.fate, it.partition = held, it.group(at.Partition)
}

// holdClosed holds what is left for places that are closed, whoever closed them.
func (d *dispatch) holdClosed(ctx context.Context) {
	closed := d.r.health.snapshot()
	if len(closed) == 0 {
		return
	}
	for _, i := range d.todo {
		it, e := &d.c.items[i], &d.c.events[i]
		if it.fate != undecided {
			continue
		}
		if closed[delivery.Whole(e.Topic)] {
			it.fate, it.partition = held, it.group(delivery.WholeTopic)
		} else if at := d.place(ctx, e); closed[at] {
			it.fate, it.partition = held, it.group(at.Partition)
		}
	}
}

// closeTopic begins to hold a topic.
func (r *Relay) closeTopic(topic string, err error) {
	if r.health.refuse(topic) {
		r.closed(delivery.Whole(topic), err)
	}
}

// closed says that a place is held from now on.
func (r *Relay) closed(at delivery.Place, err error) {
	failpoint.Hit(failpoint.RelayClosed)
	if at.Partition == delivery.WholeTopic {
		r.log.Error("a topic is refused: its events are held, in order, until it is accepted again; others go on", "topic", at.Topic, "err", err)
	} else {
		r.log.Error("a partition does not answer while others do: its events are held, in order, until it does", "topic", at.Topic, "partition", at.Partition, "err", err)
	}
	if r.cfg.Observer.Closed != nil {
		r.cfg.Observer.Closed(at.Topic, at.Partition, err)
	}
}

// reopen ends the holding of a place: the lanes that hold events for it drain them first.
func (r *Relay) reopen(at delivery.Place) {
	took, was := r.health.open(at)
	if !was {
		return
	}
	failpoint.Hit(failpoint.RelayReopened)
	r.log.Info("held events can go again", "topic", at.Topic, "partition", at.Partition, "after", took.Round(time.Millisecond))
	if r.cfg.Observer.Reopened != nil {
		r.cfg.Observer.Reopened(at.Topic, at.Partition, took)
	}
	r.lanes.Opened(at.Topic)
	r.kickPumps()
}
