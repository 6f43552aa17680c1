package relay

// A paused topic is a place that an operator has closed (P4): its events are held as a whole, in order, and nothing
// tries whether it answers. Claims read what is paused in their own transaction, so that a claim that follows the
// pause's commit sends nothing of the topic; the probe reads it too, to go on soon after a resume.

// setPaused takes over which topics are paused.
func (r *Relay) setPaused(topics []string) {
	paused, resumed := r.health.Pause(topics)
	for _, topic := range paused {
		r.log.Info("a topic is paused by an operator: its events are held, in order, until it is resumed", "topic",
			topic)
	}
	for _, topic := range resumed {
		r.log.Info("a topic was resumed by an operator", "topic", topic)
		r.lanes.Opened(topic)
	}
	if len(resumed) > 0 {
		r.kickPumps()
	}
}
