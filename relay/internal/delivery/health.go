package delivery

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Health records the state of the places that a relay sends to: which fail, which are closed, and which topics are
// paused. Events for closed and paused places are held. It is in memory only: the tables of held events show every
// owner of a lane which events come first. It is safe for concurrent use.
type Health struct {
	holdAfter time.Duration
	pauses    func() Pauses
	trouble   atomic.Bool  // a place fails or is closed: only then the events' partitions are needed
	pausing   atomic.Bool  // a topic is paused
	acked     atomic.Int64 // time of the last ack, in nanoseconds since born; 0: never
	born      time.Time
	changed   chan struct{} // a place was closed: for the goroutine that tries them
	closing   chan struct{} // closed, and replaced, when a place is closed: for attempts that may be waiting for it

	mu      sync.Mutex
	failing map[Place]time.Time // since when
	closed  map[Place]*closure
	opened  map[Place]*closure // the latest closure of an open place
	paused  map[string]bool    // topics, by an operator
	seen    map[Place]bool     // result of Closed; nil: to be computed
}

// Pauses are the pauses between tries of a closed place.
type Pauses interface{ NextBackOff() time.Duration }

// closure is a closed place, with the time of its next try.
type closure struct {
	since, next, opened time.Time
	pauses              Pauses
	unanswered          time.Time // since when it failed, if nothing was acked between that and its closing
}

// sameOutage is how soon after its opening a place is closed again for the same reason, most likely: the pauses between
// its tries go on growing.
const sameOutage = 10 * time.Second

// NewHealth makes a Health without failing places. A place is closed when it has failed for holdAfter while others
// answer; never, if that is negative.
func NewHealth(holdAfter time.Duration, now time.Time, pauses func() Pauses) *Health {
	return &Health{
		holdAfter: holdAfter, born: now, pauses: pauses, changed: make(chan struct{}, 1), closing: make(chan struct{}),
		failing: map[Place]time.Time{}, closed: map[Place]*closure{}, opened: map[Place]*closure{},
	}
}

// Acked records that an event was acked, and where: where is called only if a place fails or is closed.
func (h *Health) Acked(now time.Time, where func() map[Place]bool) {
	h.acked.Store(int64(now.Sub(h.born)))
	if !h.trouble.Load() {
		return
	}
	places := where()
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range places {
		delete(h.failing, p)
	}
	h.noteTrouble()
}

// LastAcked returns how long ago anything was last acked.
func (h *Health) LastAcked(now time.Time) (ago time.Duration, ever bool) {
	at := h.acked.Load()
	return now.Sub(h.born) - time.Duration(at), at != 0
}

// Failed records an attempt, begun at a time, that left events of places without an ack. It closes and returns the
// places that have failed for long enough while others answer.
//
// Others answer if an event was acked since the place began to fail: it went to another place. If no other place was
// tried meanwhile, they count as answering if they ever did and none of them fails: in an outage of the cluster a
// second place fails, and then the claim is kept.
func (h *Health) Failed(places map[Place]error, began, now time.Time) (closed []Place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range places { // all of them, before any is judged
		if _, ok := h.failing[p]; !ok {
			h.failing[p] = began
		}
	}
	h.noteTrouble()
	acked := time.Duration(h.acked.Load())
	alone := h.alone(acked)
	for p := range places {
		since := h.failing[p]
		othersAnswer := acked > since.Sub(h.born) || alone
		if h.holdAfter < 0 || now.Sub(since) < h.holdAfter || !othersAnswer {
			continue
		}
		delete(h.failing, p)
		if h.close(p, now) {
			closed = append(closed, p)
			if acked <= since.Sub(h.born) {
				h.closed[p].unanswered = since
			}
		}
	}
	return closed
}

// alone reports whether only one place fails, and others answered when they were last tried.
func (h *Health) alone(acked time.Duration) bool {
	return acked > 0 && len(h.failing) == 1 && len(h.closed) == 0
}

// OthersAnswer reports whether places other than the failing ones have answered since a time, by the rule of Failed.
func (h *Health) OthersAnswer(since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	acked := time.Duration(h.acked.Load())
	return acked > since.Sub(h.born) || h.alone(acked)
}

// Unanswered reports whether nothing was acked since a closed place began to fail: whether others answer is unknown.
func (h *Health) Unanswered() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	acked := time.Duration(h.acked.Load())
	for _, c := range h.closed {
		if !c.unanswered.IsZero() && acked <= c.unanswered.Sub(h.born) {
			return true
		}
	}
	return false
}

// Close closes a place. It reports whether it was open.
func (h *Health) Close(p Place, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.close(p, now)
}

func (h *Health) close(p Place, now time.Time) bool {
	if h.closed[p] != nil {
		return false
	}
	c := &closure{since: now}
	if last := h.opened[p]; last != nil && now.Sub(last.opened) < sameOutage {
		c.pauses = last.pauses
	} else {
		c.pauses = h.pauses()
	}
	delete(h.opened, p)
	c.next = c.since.Add(c.pauses.NextBackOff())
	h.closed[p] = c
	h.seen = nil
	h.noteTrouble()
	close(h.closing)
	h.closing = make(chan struct{})
	h.noteChange()
	return true
}

func (h *Health) noteChange() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Changed returns a channel that gets a value when a place was closed, or a topic resumed.
func (h *Health) Changed() <-chan struct{} { return h.changed }

// Closing returns a channel that is closed when a place is closed.
func (h *Health) Closing() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closing
}

// Open ends a closure. It returns its duration, and false if there was none.
func (h *Health) Open(p Place, now time.Time) (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.closed[p]
	if c == nil {
		return 0, false
	}
	delete(h.closed, p)
	c.opened, h.opened[p] = now, c
	h.seen = nil
	h.noteTrouble()
	return now.Sub(c.since), true
}

// Closed returns the closed places and the paused topics. A pass over a claim uses one result, so that it sees one
// state. The caller must not change it.
func (h *Health) Closed() map[Place]bool {
	if !h.trouble.Load() && !h.pausing.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen != nil {
		return h.seen
	}
	out := make(map[Place]bool, len(h.closed)+len(h.paused))
	for p := range h.closed {
		out[p] = true
	}
	for topic := range h.paused {
		out[Whole(topic)] = true
	}
	h.seen = out
	return out
}

// mostTries is how many closed places are tried together: each has an event in memory.
const mostTries = 64

// Due returns the closed places to try now, after setting their next tries, and the time of the next call.
func (h *Health) Due(now time.Time) (places []Place, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p, c := range h.closed {
		if h.paused[p.Topic] {
			continue // not even for a try
		}
		if !now.Before(c.next) && len(places) < mostTries {
			c.next = now.Add(c.pauses.NextBackOff())
			places = append(places, p)
		}
		if next.IsZero() || c.next.Before(next) {
			next = c.next
		}
	}
	return places, next
}

// Well reports whether no place fails or is closed. A paused topic does neither.
func (h *Health) Well() bool { return !h.trouble.Load() }

// noteTrouble updates trouble.
func (h *Health) noteTrouble() { h.trouble.Store(len(h.failing)+len(h.closed) > 0) }

// Age returns how long a place has been closed; 0: it is not closed.
func (h *Health) Age(p Place, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.closed[p]; c != nil {
		return now.Sub(c.since)
	}
	return 0
}

// Pause replaces the list of paused topics and returns the changes.
func (h *Health) Pause(topics []string) (paused, resumed []string) {
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
		h.noteChange() // places of the topic that are closed for another reason are tried again
	}
	return paused, resumed
}
