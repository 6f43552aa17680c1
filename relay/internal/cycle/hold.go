package cycle

import (
	"time"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// CloseTopic begins to hold a topic.
func (r *Cycle) CloseTopic(topic string, err error) {
	if r.To.Reach != nil && start.IsForeign(err) { // the keeper asks, until the cluster is the pinned one
		r.Foreign.Store(true)
	}
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

// A paused topic is a place that an operator has closed (P4): its events are held as a whole, in order, and it is not
// tried. Claims and tries read the paused topics in their own transaction, after the events, so that no event is sent
// that was committed after the pause; the probe reads them too, to continue soon after a resume.

// SetPaused replaces the list of paused topics.
func (r *Cycle) SetPaused(topics []string) {
	paused, resumed := r.Health.Pause(topics)
	for _, topic := range paused {
		r.Log.Info("a topic is paused by an operator: its events are held, in order, until it is resumed", "topic",
			topic)
	}
	for _, topic := range resumed {
		r.Log.Info("a topic was resumed by an operator", "topic", topic)
		r.Lanes.Opened(topic)
	}
	if len(resumed) > 0 {
		r.Signals.Kick()
	}
}
