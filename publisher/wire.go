package publisher

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
)

// refreshEvery bounds how often forced refreshes of metadata may reconnect.
const refreshEvery = 250 * time.Millisecond

// wire is the way to the brokers: kafka-go's Transport with two things added.
//
// A Transport asks for the metadata of every topic of the cluster again and again unless it is told which, and it is
// told only when it is made: so it is replaced when a new topic is used. Naming a topic also makes the broker say "not
// authorised" where it would otherwise leave the topic out.
//
// And it has no way to ask for metadata now: closing its idle connections makes it start over, while requests in flight
// end undisturbed.
type wire struct {
	make func(topics []string) kafka.RoundTripper

	mu        sync.Mutex
	topics    map[string]bool
	current   kafka.RoundTripper // nil until the first request
	refreshed time.Time
}

func newWire(cfg Config) *wire {
	if cfg.Transport != nil {
		return &wire{current: cfg.Transport}
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	}
	return &wire{topics: map[string]bool{}, make: func(topics []string) kafka.RoundTripper {
		return &kafka.Transport{
			Dial: dial, DialTimeout: min(5*time.Second, cfg.Timeout), TLS: cfg.TLS, SASL: cfg.SASL,
			ClientID: cfg.ClientID,
			// Shorter than the 350 s after which common load balancers forget a connection, and than the broker's 10
			// min.
			IdleTimeout: 4 * time.Minute,
			// Also the time-out of a metadata request. Leaders that moved in order show in errors, which refresh at
			// once.
			MetadataTTL: 3 * time.Second, MetadataTopics: topics,
		}
	}}
}

// learn makes metadata of a topic available and, when it is new, of those of the events behind it: all by one
// Transport, for a Transport costs connections and a request.
func (w *wire) learn(topic string, behind []event.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.make == nil || w.topics[topic] {
		return
	}
	w.topics[topic] = true
	for i := range behind {
		w.topics[behind[i].Topic] = true
	}
	closeIdle(w.current)
	w.current = w.make(slices.Sorted(maps.Keys(w.topics)))
}

// refresh makes the next request ask for metadata first, unless that was done a moment ago.
func (w *wire) refresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now.Sub(w.refreshed) >= refreshEvery {
		w.refreshed = now
		closeIdle(w.current)
	}
}

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	closeIdle(w.current)
}

// RoundTrip implements kafka.RoundTripper.
func (w *wire) RoundTrip(ctx context.Context, addr net.Addr, req kafka.Request) (kafka.Response, error) {
	w.mu.Lock()
	if w.current == nil {
		w.current = w.make([]string{})
	}
	current := w.current
	w.mu.Unlock()
	res, err := current.RoundTrip(ctx, addr, req)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != current {
		// It was replaced and closed, perhaps before this request made it open connections again.
		closeIdle(current)
	}
	return res, err
}

func closeIdle(t kafka.RoundTripper) {
	if c, ok := t.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
