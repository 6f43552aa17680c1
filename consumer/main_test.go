package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

// testTimeout turns a hang into a failure; no test takes nearly as long. A test has two minutes to find a bug of
// verify/mutations.
const testTimeout = 90 * time.Second

// handler is an inbox in memory. Without do it applies every event.
type handler struct {
	inbox.HandlerFunc // nil: handler overrides Handle alone

	do func(ctx context.Context, events []event.Event) ([]inbox.Outcome, error)

	mu      sync.Mutex
	seen    []event.Event // the decided events, in the order of decision
	batches []int
	changed chan struct{}
}

func newHandler() *handler { return &handler{changed: make(chan struct{})} }

func (h *handler) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	outcomes, err := applied(len(events)), error(nil)
	if h.do != nil {
		outcomes, err = h.do(ctx, events)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.batches = append(h.batches, len(events))
	for i, o := range outcomes {
		if o == inbox.Undecided {
			break
		}
		h.seen = append(h.seen, events[i])
	}
	close(h.changed)
	h.changed = make(chan struct{})
	return outcomes, err
}

func applied(n int) []inbox.Outcome {
	out := make([]inbox.Outcome, n)
	for i := range out {
		out[i] = inbox.Applied
	}
	return out
}

// await waits until n events are decided and returns the events by partition.
func (h *handler) await(t testing.TB, n int) map[int32][]event.Event {
	t.Helper()
	deadline := time.After(testTimeout)
	for {
		h.mu.Lock()
		count, changed := len(h.seen), h.changed
		h.mu.Unlock()
		if count >= n {
			return h.byPartition()
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%d events decided, want %d", count, n)
		}
	}
}

func (h *handler) byPartition() map[int32][]event.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[int32][]event.Event{}
	for _, e := range h.seen {
		out[e.Position.Partition] = append(out[e.Position.Partition], e)
	}
	return out
}

// config returns a Config with short intervals, for fast rebalances. The time-outs are so long that a slow machine does
// not reach them: a member that the group has lost reads its events again.
func config(group string) consumer.Config {
	return consumer.Config{
		Group: group, SessionTimeout: time.Minute, RebalanceTimeout: 30 * time.Second,
		HeartbeatInterval: 100 * time.Millisecond, FetchWait: 100 * time.Millisecond,
		CommitEvery: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
}

// member is a running consumer.
type member struct {
	*consumer.Consumer
	cancel context.CancelFunc
	done   chan error
	once   sync.Once
}

func start(t testing.TB, h inbox.Handler, topic string, cfg consumer.Config) *member {
	t.Helper()
	return startAt(t, h, kafkatest.Brokers(t), topic, cfg)
}

func startAt(t testing.TB, h inbox.Handler, brokers []string, topic string, cfg consumer.Config) *member {
	t.Helper()
	return startTopics(t, h, brokers, []string{topic}, cfg)
}

func startTopics(t testing.TB, h inbox.Handler, brokers, topics []string, cfg consumer.Config) *member {
	t.Helper()
	c, err := consumer.New(h, brokers, topics, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{Consumer: c, cancel: cancel, done: make(chan error, 1)}
	go func() { m.done <- c.Run(ctx) }()
	t.Cleanup(func() { m.stop(t) })
	return m
}

// stop drains the member and checks that Run returns nil.
func (m *member) stop(t testing.TB) {
	t.Helper()
	m.once.Do(func() {
		m.cancel()
		select {
		case err := <-m.done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(testTimeout):
			t.Error("Run does not return")
		}
	})
}

// await polls cond, for state of the broker that no signal announces.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testTimeout)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// recv receives from ch, or fails the test after testTimeout.
func recv[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(testTimeout):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// committed returns a group's committed offset of each partition; -1: none.
func committed(t testing.TB, brokers []string, group, topic string, partitions int) []int64 {
	t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
	ids := make([]int, partitions)
	for i := range ids {
		ids[i] = i
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	var res *kafka.OffsetFetchResponse
	await(t, "the group's offsets", func() bool {
		var err error
		res, err = client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
			GroupID: group,
			Topics:  map[string][]int{topic: ids},
		})
		return err == nil && res.Error == nil
	})
	out := make([]int64, partitions)
	for _, p := range res.Topics[topic] {
		out[p.Partition] = p.CommittedOffset
	}
	return out
}

// records returns n records with this framework's headers for each partition. A record's key is its index.
func records(n int, partitions ...int32) (out []kafkatest.Record) {
	for i := range n {
		for _, p := range partitions {
			e := event.Event{ID: event.NewID(), Source: "test", Type: "Happened", Payload: fmt.Appendf(nil, "%d", i)}
			r := kafkatest.Record{Partition: p, Key: []byte(strconv.Itoa(i)), Value: e.Payload}
			for _, h := range event.AppendHeaders(nil, &e) {
				r.Headers = append(r.Headers, kafkatest.Header(h))
			}
			out = append(out, r)
		}
	}
	return out
}

// offsetsOf checks that the offsets of events are from to to-1, in order, without a gap or a repetition.
func offsetsOf(t testing.TB, events []event.Event, from, to int64) {
	t.Helper()
	if int64(len(events)) != to-from {
		t.Errorf("%d events, want offsets %d to %d", len(events), from, to-1)
		return
	}
	var got []int64
	for _, e := range events {
		got = append(got, e.Position.Offset)
	}
	for i, offset := range got {
		if offset != from+int64(i) {
			t.Fatalf("the offsets are %d, want %d to %d", got, from, to-1)
		}
	}
}

// logs is a consumer's log output.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logs) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.b.Bytes(), []byte(s))
}
