package relay

import "slices"

// A paused topic is a place that an operator has closed (P4): its events are held as a whole, in order, and nothing
// tries whether it answers. Claims read what is paused in their own transaction, so that a claim that follows the
// pause's commit sends nothing of the topic; the probe reads it too, to go on soon after a resume.

// pauses takes over which topics are paused.
func (r *Relay) pauses(topics []string) {
	paused, resumed := r.health.pause(topics)
	for _, topic := range paused {
		r.log.Info("a topic is paused by an operator: its events are held, in order, until it is resumed", "topic", topic)
	}
	for _, topic := range resumed {
		r.log.Info("a topic was resumed by an operator", "topic", topic)
		r.lanes.Opened(topic)
	}
	if len(resumed) > 0 {
		r.kickPumps()
	}
}

// pause makes topics the paused ones and returns what has changed.
func (h *health) pause(topics []string) (paused, resumed []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(topics) == 0 && len(h.paused) == 0 {
		return nil, nil
	}
	for topic := range h.paused {
		if !slices.Contains(topics, topic) {
			resumed = append(resumed, topic)
		}
	}
	now := make(map[string]bool, len(topics))
	for _, topic := range topics {
		now[topic] = true
		if !h.paused[topic] {
			paused = append(paused, topic)
		}
	}
	h.paused, h.seen = now, nil
	h.pausing.Store(len(now) > 0)
	if len(resumed) > 0 {
		select {
		case h.changed <- struct{}{}: // its places that are closed by themselves are tried again
		default:
		}
	}
	return paused, resumed
}
