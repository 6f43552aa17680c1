package cycle

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
