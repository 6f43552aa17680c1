package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/outcome"
)

// eventsForEach returns n events, for the partitions of a topic in turn. Their payloads count from from.
func eventsForEach(topic string, partitions, from, n int) (events []event.Event) {
	names := keys(partitions)
	for i := range n {
		events = append(events, newEvent(topic, names[i%partitions], fmt.Sprint(from+i)))
	}
	return events
}

// requestLog records how many partitions each request had, and what was written.
type requestLog struct {
	mu    sync.Mutex
	of    map[int][]int // by partition
	wrote map[int][]string
}

func (j *requestLog) note(r request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.of[r.partition] = append(j.of[r.partition], r.joined)
	j.wrote[r.partition] = append(j.wrote[r.partition], r.values()...)
}

func (j *requestLog) take() map[int][]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	of := j.of
	j.of = map[int][]int{}
	return of
}

func newRequestLog() *requestLog { return &requestLog{of: map[int][]int{}, wrote: map[int][]string{}} }

// TestFewEventsShareARequest: a call sends its events for eight partitions in one request. The events of a partition
// that fails get that partition's error, and the partition gets requests of its own until one succeeds.
func TestFewEventsShareARequest(t *testing.T) {
	t.Parallel()
	seen, fails := newRequestLog(), false
	f := &fake{partitions: 8, produce: func(_ context.Context, r request) *produce.ResponsePartition {
		seen.note(r)
		if fails && r.partition == 3 {
			return code(kafka.NotEnoughReplicas)
		}
		return &produce.ResponsePartition{}
	}}
	k := newKafka(t, []string{"nowhere:1"}, Config{Transport: f})
	requests := func(want ...int) {
		t.Helper()
		of := seen.take()
		for p, joined := range want {
			if !slices.Equal(of[p], []int{joined}) {
				t.Errorf("partition %d was in requests of %v partitions, want one request of %d", p, of[p], joined)
			}
		}
	}
	allAcked(t, k.Publish(t.Context(), eventsForEach("t", 8, 0, 40)))
	requests(8, 8, 8, 8, 8, 8, 8, 8)
	fails = true
	for turn := range 2 {
		for i, err := range k.Publish(t.Context(), eventsForEach("t", 8, 40, 40)) {
			if bad := i%8 == 3; bad != (err != nil) || bad && !errors.Is(err, kafka.NotEnoughReplicas) {
				t.Errorf("turn %d, event %d: %v", turn, i, err)
			}
		}
		if turn == 0 {
			requests(8, 8, 8, 8, 8, 8, 8, 8)
		} else {
			requests(7, 7, 7, 1, 7, 7, 7, 7)
		}
	}
	fails = false
	allAcked(t, k.Publish(t.Context(), eventsForEach("t", 8, 80, 40)))
	requests(7, 7, 7, 1, 7, 7, 7, 7)
	allAcked(t, k.Publish(t.Context(), eventsForEach("t", 8, 120, 40)))
	requests(8, 8, 8, 8, 8, 8, 8, 8)
}

// TestLeadersThatDiffer: a request was combined by old metadata, and its partitions now have several leaders. It is not
// sent as a whole: each batch is sent by itself.
func TestLeadersThatDiffer(t *testing.T) {
	t.Parallel()
	seen := newRequestLog()
	f := &fake{
		partitions: 4, err: rawproduce.NewError(errors.New("mismatching leaders (1!=2)")),
		produce: func(_ context.Context, r request) *produce.ResponsePartition {
			if r.joined > 1 {
				return nil
			}
			seen.note(r)
			return &produce.ResponsePartition{}
		},
	}
	k := newKafka(t, []string{"nowhere:1"}, Config{Transport: f})
	allAcked(t, k.Publish(t.Context(), eventsForEach("t", 4, 0, 20)))
	for p := range 4 {
		if want := []string{
			fmt.Sprint(p), fmt.Sprint(p + 4), fmt.Sprint(p + 8), fmt.Sprint(p + 12),
			fmt.Sprint(p + 16),
		}; !slices.Equal(seen.wrote[p], want) {
			t.Errorf("partition %d has %v, want %v", p, seen.wrote[p], want)
		}
	}
}

// TestCombinedRequestLosesItsAnswer: the outcome of every batch of the request is unknown. A batch that is refused when
// it is sent again may have been written.
func TestCombinedRequestLosesItsAnswer(t *testing.T) {
	t.Parallel()
	f := &fake{
		partitions: 4, err: io.ErrUnexpectedEOF,
		produce: func(_ context.Context, r request) *produce.ResponsePartition {
			switch {
			case r.joined > 1:
				return nil
			case r.partition == 2:
				return code(kafka.TopicAuthorizationFailed)
			}
			return &produce.ResponsePartition{}
		},
	}
	k := newKafka(t, []string{"nowhere:1"}, Config{Transport: f})
	for i, err := range k.Publish(t.Context(), eventsForEach("t", 4, 0, 20)) {
		var refused *outcome.Refusal
		if i%4 == 2 {
			if !errors.As(err, &refused) || !refused.MaybePublished {
				t.Errorf("event %d: %v, want a refusal that may have been written", i, err)
			}
		} else if err != nil {
			t.Errorf("event %d: %v", i, err)
		}
	}
}

// produceCounter counts the produce requests to a real broker.
type produceCounter struct {
	kafka.Transport
	mu       sync.Mutex
	produced int
}

func (c *produceCounter) RoundTrip(ctx context.Context, addr net.Addr, req kafka.Request) (kafka.Response, error) {
	if _, ok := req.(*rawproduce.Request); ok {
		c.mu.Lock()
		c.produced++
		c.mu.Unlock()
	}
	return c.Transport.RoundTrip(ctx, addr, req)
}

// TestCombinedRequestIsWritten: a real broker accepts a combined request and writes each record to its partition, in
// order.
func TestCombinedRequestIsWritten(t *testing.T) {
	t.Parallel()
	topic, other := kafkatest.Topic(t, 8), kafkatest.Topic(t, 3)
	by := &produceCounter{}
	t.Cleanup(by.CloseIdleConnections)
	k := newKafka(t, kafkatest.Brokers(t), Config{Transport: by, Timeout: time.Minute})
	allAcked(t, k.Publish(t.Context(), append(eventsForEach(topic, 8, 0, 80), eventsForEach(other, 3, 0, 30)...)))
	if by.produced != 1 {
		t.Errorf("%d produce requests for 11 partitions of a broker, want 1", by.produced)
	}
	for name, partitions := range map[string]int{topic: 8, other: 3} {
		next, records := map[int32]int{}, kafkatest.ReadAll(t, name)
		for _, r := range records {
			if want := fmt.Sprint(next[r.Partition]*partitions + int(r.Partition)); string(r.Value) != want {
				t.Fatalf("%s-%d has %s, want %s", name, r.Partition, r.Value, want)
			}
			next[r.Partition]++
		}
		if len(records) != 10*partitions {
			t.Errorf("%s has %d records, want %d", name, len(records), 10*partitions)
		}
	}
}

// TestThrottledClientSendsNothing: a broker that throttles a client does not read its next request before the time-out.
func TestThrottledClientSendsNothing(t *testing.T) {
	t.Parallel()
	seen, said := newRequestLog(), &bytes.Buffer{}
	f := &fake{partitions: 2, throttle: 3_600_000}
	f.produce = func(_ context.Context, r request) *produce.ResponsePartition {
		seen.note(r)
		return &produce.ResponsePartition{}
	}
	k := newKafka(t, []string{"nowhere:1"}, Config{Transport: f, Logger: slog.New(slog.NewTextHandler(said, nil))})
	allAcked(t, k.Publish(t.Context(), eventsForEach("t", 2, 0, 4)))
	seen.take()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for i, err := range k.Publish(ctx, eventsForEach("t", 2, 4, 4)) {
		if !isUnsent(err) {
			t.Errorf("event %d: %v", i, err)
		}
	}
	if of := seen.take(); len(of) > 0 {
		t.Errorf("requests for %v while the broker reads none", of)
	}
	if strings.Count(said.String(), "throttles this client") != 1 {
		t.Errorf("the log is %q", said)
	}
}
