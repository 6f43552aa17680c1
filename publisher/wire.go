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
	"github.com/effectonce/effectonce/internal/kafkaguard"
)

// refreshEvery bounds how often forced refreshes of metadata may reconnect.
const refreshEvery = 250 * time.Millisecond

// wire is kafka-go's Transport with two additions.
//
// A Transport refreshes the metadata of every topic of the cluster unless it is made with a list of topics. So it is
// replaced when a new topic is used. For a topic on the list a broker also answers "not authorised"; otherwise it
// leaves the topic out.
//
// A Transport has no method that refreshes metadata at once. Closing its idle connections does, and lets requests in
// flight finish.
type wire struct {
	make func(topics []string) kafka.RoundTripper

	mu        sync.Mutex
	topics    map[string]bool
	current   kafka.RoundTripper // nil until the first request
	refreshed time.Time
	throttled map[int32]time.Time // until when a broker reads nothing of this client
	warned    time.Time           // of that
}

const (
	// mostThrottle bounds how long a broker's answer may stop this client: brokers wait for their quota's window, of
	// some seconds, at most.
	mostThrottle = time.Minute
	// throttleSaid is how often it is said.
	throttleSaid = 10 * time.Minute
)

// throttle notes that a broker has answered, and reads nothing from this client for a while, because of a quota: a
// request would run into its time-out there, be written all the same, and be repeated. warn: it is to be said.
func (w *wire) throttle(leader int32, pause time.Duration) (warn bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if until := now.Add(min(pause, mostThrottle)); until.After(w.throttled[leader]) {
		w.throttled[leader] = until
	}
	if warn = now.Sub(w.warned) > throttleSaid; warn {
		w.warned = now
	}
	return warn
}

// rests is for how long a broker is to be sent nothing.
func (w *wire) rests(leader int32) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(w.throttled[leader])
}

func newWire(cfg Config) *wire {
	throttled := map[int32]time.Time{}
	if cfg.Transport != nil {
		return &wire{current: cfg.Transport, throttled: throttled}
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	}
	return &wire{topics: map[string]bool{}, throttled: throttled, make: func(topics []string) kafka.RoundTripper {
		return &kafka.Transport{
			Dial: kafkaguard.Dial(dial, cfg.TLS), DialTimeout: min(5*time.Second, cfg.Timeout), SASL: cfg.SASL,
			ClientID: cfg.ClientID,
			// Shorter than the 350 s after which common load balancers forget a connection, and than the broker's 10
			// min.
			IdleTimeout: 4 * time.Minute,
			// Also the time-out of a metadata request. A planned move of a leader shows as an error, which refreshes at
			// once.
			MetadataTTL: 3 * time.Second, MetadataTopics: topics,
		}
	}}
}

// learn makes the metadata of a topic available. If the topic is new, it includes the topics of the events after it in
// the same Transport: each Transport costs connections and a request.
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

// refresh makes the next request read metadata first, at most once every refreshEvery.
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
		// The Transport was replaced and closed, and this request may have opened connections since.
		closeIdle(current)
	}
	return res, err
}

func closeIdle(t kafka.RoundTripper) {
	if c, ok := t.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
