package relay

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/outage"
)

// health is what a relay knows of the places that it sends to: which fail, and which are closed, so that their events
// are held. It is in memory only. What is held says by itself that it must go first, whoever owns the lane.
type health struct {
	holdAfter time.Duration
	trouble   atomic.Bool  // something fails or is closed: only then does anybody need to know an event's partition
	pausing   atomic.Bool  // something is paused
	acked     atomic.Int64 // when anything was last acked, in nanoseconds since born; 0: never
	born      time.Time
	changed   chan struct{} // a place was closed: for who tries them
	closing   chan struct{} // closed, and made anew, when a place is closed: for attempts that may be waiting for it

	mu      sync.Mutex
	failing map[delivery.Place]time.Time // since when
	closed  map[delivery.Place]*closure
	paused  map[string]bool         // topics, by an operator
	seen    map[delivery.Place]bool // what snapshot returns; nil: it is to be made
}

// closure is a closed place, and when it is tried next.
type closure struct {
	since time.Time
	next  time.Time
	pause *backoff.ExponentialBackOff
}

func newHealth(holdAfter time.Duration) *health {
	return &health{
		holdAfter: holdAfter, born: time.Now(), changed: make(chan struct{}, 1), closing: make(chan struct{}),
		failing: map[delivery.Place]time.Time{}, closed: map[delivery.Place]*closure{},
	}
}

// ack notes that something was acked, and where: asked only while there is trouble.
func (h *health) ack(where func() map[delivery.Place]bool) {
	h.acked.Store(int64(time.Since(h.born)))
	if !h.trouble.Load() {
		return
	}
	places := where()
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range places {
		delete(h.failing, p)
	}
	h.settle()
}

// fail notes an attempt, begun at a time, that left events of places without an ack. It returns those that have failed
// for long enough while others answer: from now on they are closed.
//
// Others answer when something was acked since the place began to fail: it was not this one. Where nothing else was
// tried meanwhile, they count as answering if they ever did and none of them is in trouble too: a cluster that is away
// shows itself by the second place, and then the claim is kept.
func (h *health) fail(places map[delivery.Place]error, began time.Time) (closed []delivery.Place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range places { // all of them, before any is judged by how the others do
		if _, ok := h.failing[p]; !ok {
			h.failing[p] = began
		}
	}
	h.settle()
	acked := time.Duration(h.acked.Load())
	alone := h.alone(acked)
	for p := range places {
		since := h.failing[p]
		othersAnswer := acked > since.Sub(h.born) || alone
		if h.holdAfter < 0 || time.Since(since) < h.holdAfter || !othersAnswer {
			continue
		}
		delete(h.failing, p)
		if h.shut(p) {
			closed = append(closed, p)
		}
	}
	return closed
}

// alone reports whether one place is in trouble, and others answered when they were last tried.
func (h *health) alone(acked time.Duration) bool {
	return acked > 0 && len(h.failing) == 1 && len(h.closed) == 0
}

// answers reports whether others than those that fail have answered since, as fail judges it.
func (h *health) answers(since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	acked := time.Duration(h.acked.Load())
	return acked > since.Sub(h.born) || h.alone(acked)
}

// refuse closes a topic. It reports whether it was open.
func (h *health) refuse(topic string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shut(delivery.Whole(topic))
}

func (h *health) shut(p delivery.Place) bool {
	if h.closed[p] != nil {
		return false
	}
	c := &closure{since: time.Now(), pause: outage.NewBackOff()}
	c.next = c.since.Add(c.pause.NextBackOff())
	h.closed[p] = c
	h.seen = nil
	h.settle()
	close(h.closing)
	h.closing = make(chan struct{})
	select {
	case h.changed <- struct{}{}:
	default:
	}
	return true
}

// closings ends when a place is closed.
func (h *health) closings() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closing
}

// open ends a closure. It returns how long it lasted; false: there was none.
func (h *health) open(p delivery.Place) (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.closed[p]
	if c == nil {
		return 0, false
	}
	delete(h.closed, p)
	h.seen = nil
	h.settle()
	return time.Since(c.since), true
}

// snapshot returns the closed places as of now: one pass over a claim must see one state. It is not to be changed.
func (h *health) snapshot() map[delivery.Place]bool {
	if !h.trouble.Load() && !h.pausing.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen != nil {
		return h.seen
	}
	out := make(map[delivery.Place]bool, len(h.closed)+len(h.paused))
	for p := range h.closed {
		out[p] = true
	}
	for topic := range h.paused {
		out[delivery.Whole(topic)] = true
	}
	h.seen = out
	return out
}

// mostTries is how many closed places are tried together: of each, an event is in memory.
const mostTries = 64

// due returns the closed places to try now, each with its next try set, and when to look again.
func (h *health) due(now time.Time) (places []delivery.Place, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p, c := range h.closed {
		if h.paused[p.Topic] {
			continue // not even for a try
		}
		if !now.Before(c.next) && len(places) < mostTries {
			c.next = now.Add(c.pause.NextBackOff())
			places = append(places, p)
		}
		if next.IsZero() || c.next.Before(next) {
			next = c.next
		}
	}
	return places, next
}

// settle renews trouble.
func (h *health) settle() { h.trouble.Store(len(h.failing)+len(h.closed) > 0) }

// age is how long a place has been closed; 0: it is not.
func (h *health) age(p delivery.Place) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.closed[p]; c != nil {
		return time.Since(c.since)
	}
	return 0
}
