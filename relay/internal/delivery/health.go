package delivery

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Health is what a relay knows of the places that it sends to: which fail, which are closed, and which topics are
// paused; what goes to closed and paused ones is held. It is in memory only. What is held says by itself that it must
// go first, whoever owns the lane. It is safe for concurrent use.
type Health struct {
	holdAfter time.Duration
	pauses    func() Pauses
	trouble   atomic.Bool  // something fails or is closed: only then does anybody need to know an event's partition
	pausing   atomic.Bool  // something is paused
	acked     atomic.Int64 // when anything was last acked, in nanoseconds since born; 0: never
	born      time.Time
	changed   chan struct{} // a place was closed: for who tries them
	closing   chan struct{} // closed, and made anew, when a place is closed: for attempts that may be waiting for it

	mu      sync.Mutex
	failing map[Place]time.Time // since when
	closed  map[Place]*closure
	paused  map[string]bool // topics, by an operator
	seen    map[Place]bool  // what Closed returns; nil: it is to be made
}

// Pauses are those between tries of a closed place.
type Pauses interface{ NextBackOff() time.Duration }

// closure is a closed place, and when it is tried next.
type closure struct {
	since, next time.Time
	pauses      Pauses
}

// NewHealth knows of no trouble. A place is closed when it has failed for so long while others answer; never, if that
// is negative.
func NewHealth(holdAfter time.Duration, now time.Time, pauses func() Pauses) *Health {
	return &Health{
		holdAfter: holdAfter, born: now, pauses: pauses, changed: make(chan struct{}, 1), closing: make(chan struct{}),
		failing: map[Place]time.Time{}, closed: map[Place]*closure{},
	}
}

// Acked notes that something was acked, and where: asked only while there is trouble.
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

// Failed notes an attempt, begun at a time, that left events of places without an ack. It returns those that have
// failed for long enough while others answer: from now on they are closed.
//
// Others answer when something was acked since the place began to fail: it was not this one. Where nothing else was
// tried meanwhile, they count as answering if they ever did and none of them is in trouble too: a cluster that is away
// shows itself by the second place, and then the claim is kept.
func (h *Health) Failed(places map[Place]error, began, now time.Time) (closed []Place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range places { // all of them, before any is judged by how the others do
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
		}
	}
	return closed
}

// alone reports whether one place is in trouble, and others answered when they were last tried.
func (h *Health) alone(acked time.Duration) bool {
	return acked > 0 && len(h.failing) == 1 && len(h.closed) == 0
}

// OthersAnswer reports whether others than those that fail have answered since a time, as Failed judges it.
func (h *Health) OthersAnswer(since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	acked := time.Duration(h.acked.Load())
	return acked > since.Sub(h.born) || h.alone(acked)
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
	c := &closure{since: now, pauses: h.pauses()}
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

// Changed tells that a place was closed, or a topic resumed.
func (h *Health) Changed() <-chan struct{} { return h.changed }

// Closing ends when a place is closed.
func (h *Health) Closing() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closing
}

// Open ends a closure. It returns how long it lasted; false: there was none.
func (h *Health) Open(p Place, now time.Time) (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.closed[p]
	if c == nil {
		return 0, false
	}
	delete(h.closed, p)
	h.seen = nil
	h.noteTrouble()
	return now.Sub(c.since), true
}

// Closed returns the closed places as of now, with the paused topics: one pass over a claim must see one state. It is
// not to be changed.
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

// mostTries is how many closed places are tried together: of each, an event is in memory.
const mostTries = 64

// Due returns the closed places to try now, each with its next try set, and when to look again.
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

// Well reports whether nothing fails or is closed. What is paused does neither.
func (h *Health) Well() bool { return !h.trouble.Load() }

// noteTrouble renews trouble.
func (h *Health) noteTrouble() { h.trouble.Store(len(h.failing)+len(h.closed) > 0) }

// Age is how long a place has been closed; 0: it is not.
func (h *Health) Age(p Place, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.closed[p]; c != nil {
		return now.Sub(c.since)
	}
	return 0
}

// Pause makes topics the paused ones and returns what has changed.
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
		h.noteChange() // its places that are closed by themselves are tried again
	}
	return paused, resumed
}
