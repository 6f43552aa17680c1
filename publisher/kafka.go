package publisher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/kafkaguard"
)

// mostAtOnce bounds a Publish call's requests in flight. kafka-go uses a connection for each.
const mostAtOnce = 64

// Kafka publishes events to a cluster. Its methods may be called from several goroutines.
type Kafka struct {
	cfg    Config
	codec  kafka.Compression
	wire   *wire
	client *kafka.Client
	pool   sync.Pool // of *batch

	mu      sync.Mutex
	topics  map[string]*topic
	done    chan struct{} // closed by Close
	closed  bool
	running sync.WaitGroup
	shared  bool // the wire belongs to another Kafka
}

// NewKafka makes a Kafka of bootstrap addresses ("host:port"). It starts nothing and connects to nothing: brokers that
// are away show in verdicts. An error says which setting to change.
func NewKafka(brokers []string, cfg Config) (*Kafka, error) {
	var errs []error
	if len(brokers) == 0 {
		errs = append(errs, errors.New("name at least one broker as host:port"))
	}
	for _, b := range brokers {
		if !kafkaguard.IsAddress(b) {
			errs = append(errs, fmt.Errorf("write broker %q as host:port", b))
		}
	}
	cfg, err := cfg.withDefaults()
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	codec, err := codecOf(cfg.Compression)
	if err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	k := &Kafka{cfg: cfg, codec: codec, wire: newWire(cfg), topics: map[string]*topic{}, done: make(chan struct{})}
	// Without a time-out the client gives brokers 500 ms for replication.
	k.client = &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: cfg.Timeout, Transport: k.wire}
	k.pool.New = func() any { return &batch{compression: codec} }
	return k, nil
}

// Share makes a Kafka for another outbox over k's connections, with its own Pin, Logger and Observer and otherwise k's
// Config. It shares no knowledge of topics with k and does not wait for k's requests. Close it before k.
func (k *Kafka) Share(pin func(ctx context.Context, cluster, topic string, partitions int) (int, error),
	log *slog.Logger, observer Observer,
) *Kafka {
	s := &Kafka{
		cfg: k.cfg, codec: k.codec, wire: k.wire, client: k.client, shared: true, topics: map[string]*topic{},
		done: make(chan struct{}),
	}
	s.cfg.Pin, s.cfg.Logger, s.cfg.Observer = pin, log, observer
	s.pool.New = func() any { return &batch{compression: s.codec} }
	return s
}

// Close stops running Publish calls: it waits for their requests in flight (at most Config.Timeout), then closes the
// connections unless they are shared. Later calls get ErrClosed. It always returns nil.
func (k *Kafka) Close() error {
	k.mu.Lock()
	if !k.closed {
		k.closed = true
		close(k.done)
	}
	k.mu.Unlock()
	k.running.Wait()
	if !k.shared {
		k.wire.close()
	}
	return nil
}

// Reach asks a broker for its API versions and its cluster. It returns nil if one answers, and Config.Pin does not
// refuse the cluster.
func (k *Kafka) Reach(ctx context.Context) error {
	_, err := k.client.ApiVersions(ctx, &kafka.ApiVersionsRequest{}) // never from a cache, as metadata are
	if err != nil || k.cfg.Pin == nil {
		return unreached(err)
	}
	meta, err := k.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{}})
	if err != nil || meta.ClusterID == "" {
		return unreached(err)
	}
	if _, err := k.cfg.Pin(ctx, meta.ClusterID, "", 0); isRefusal(err) {
		return fmt.Errorf("publisher: %w", err)
	}
	return nil
}

func unreached(err error) error {
	if err != nil {
		return fmt.Errorf("publisher: no broker answers: %w", err)
	}
	return nil
}

// Publish sends events and returns a verdict for each, in their order; see the package comment for their meaning.
// Events of one partition are sent in the order of the slice; after the first that is not acknowledged, nothing later
// of that partition is sent by this call, and other partitions go on. Small batches for partitions of one broker share
// a request.
//
// The end of ctx stops new requests. Requests in flight still get their verdicts, within Config.Timeout.
func (k *Kafka) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := make([]error, len(events))
	if !k.begin() {
		for i := range verdicts {
			verdicts[i] = ErrClosed
		}
		return verdicts
	}
	defer k.running.Done()

	groups := k.group(ctx, events, verdicts)
	workers := min(len(groups), mostAtOnce)
	r := &round{k: k, busy: workers}
	var next atomic.Int32
	work := func() {
		defer r.rest()
		for {
			i := int(next.Add(1)) - 1
			if i >= len(groups) {
				return
			}
			k.sendGroup(ctx, r, groups[i], events, verdicts)
		}
	}
	if workers == 0 {
		return verdicts
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return verdicts
}

// Route returns the function that chooses the partition of a topic's events, by the pinned count. For a topic that was
// published to before it needs no request; for another one it asks a broker, and fails if none answers or the topic is
// refused.
func (k *Kafka) Route(ctx context.Context, topic string) (func(e *event.Event) int32, error) {
	t := k.topic(topic)
	parts := t.snapshot()
	if parts == nil {
		if !k.begin() {
			return nil, ErrClosed
		}
		defer k.running.Done()
		var err error
		if parts, err = k.resolve(ctx, t); err != nil {
			return nil, err
		}
	}
	count := len(parts)
	return func(e *event.Event) int32 { return int32(choose(e, count)) }, nil
}

// Partitions returns a topic's number of partitions, from metadata that is at most some seconds old. For a topic that
// does not exist the error wraps kafka.UnknownTopicOrPartition.
func (k *Kafka) Partitions(ctx context.Context, topic string) (int, error) {
	if !k.begin() {
		return 0, ErrClosed
	}
	defer k.running.Done()
	_, leaders, err := k.describe(ctx, topic)
	return len(leaders), err
}

func (k *Kafka) begin() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.running.Add(1)
	return true
}

// halted returns why nothing more may be sent, or nil.
func (k *Kafka) halted(ctx context.Context) error {
	select {
	case <-k.done:
		return ErrClosed
	default:
		return ctx.Err()
	}
}

// acquire acquires a binary semaphore, unless ctx or the Kafka ends first.
func (k *Kafka) acquire(ctx context.Context, sem chan struct{}) error {
	select {
	case sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-k.done:
		return ErrClosed
	}
}
