package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// blockingHandler returns a handler whose calls block until letGo is closed.
func blockingHandler(letGo <-chan struct{}) (h *handler, called chan consumer.Partition) {
	h, called = newHandler(), make(chan consumer.Partition, 100)
	h.do = func(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
		called <- consumer.Partition{Topic: events[0].Topic, ID: events[0].Position.Partition}
		select {
		case <-letGo:
			return applied(len(events)), nil
		case <-ctx.Done():
			return make([]inbox.Outcome, len(events)), ctx.Err()
		}
	}
	return h, called
}

func partition(s consumer.Status, id int32) (found consumer.PartitionStatus) {
	for _, p := range s.Partitions {
		if p.ID == id {
			found = p
		}
	}
	return found
}

// While a handler hangs, nothing is fetched. Status still has the right lag, and since when the process and the handler
// stand still, also after a rebalance.
func TestHangingHandlerIsReported(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	letGo := make(chan struct{})
	h, called := blockingHandler(letGo)
	cfg := config(topic)
	cfg.ResumeEvery = 20 * time.Millisecond
	m := start(t, h, topic, cfg)
	await(t, "the ends of both logs", func() bool {
		s := m.Status()
		return len(s.Partitions) == 2 && s.Partitions[0].Lag == 0 && s.Partitions[1].Lag == 0
	})
	if s := m.Status(); !s.StalledSince.IsZero() || !s.Partitions[0].HandlingSince.IsZero() {
		t.Errorf("stalled without an event: %+v", s)
	}
	kafkatest.Produce(t, topic, records(1, 0, 1)...)
	recv(t, "the handler's call", called)
	recv(t, "its call for the other partition", called)
	for _, lag := range []int64{11, 21} { // the first events are fetched, one chunk ahead of the handler
		kafkatest.Produce(t, topic, records(10, 0, 1)...)
		await(t, "the lag", func() bool {
			s := m.Status()
			return s.Partitions[0].Lag == lag && s.Partitions[1].Lag == lag
		})
	}
	before := m.Status()
	if before.StalledSince.IsZero() || before.Partitions[0].HandlingSince.IsZero() {
		t.Errorf("no StalledSince or HandlingSince: %+v", before)
	}
	second := start(t, h, topic, cfg)
	recv(t, "the handler's call after the rebalance", called)
	await(t, "a share of the partitions", func() bool {
		return len(m.Status().Partitions) == 1 &&
			len(second.Status().Partitions) == 1
	})
	if s := m.Status(); s.Generation == before.Generation || !s.StalledSince.Equal(before.StalledSince) {
		t.Errorf("generation %d: stalled since %v; generation %d: since %v", before.Generation, before.StalledSince,
			s.Generation, s.StalledSince)
	}
	close(letGo)
	h.await(t, 42)
	await(t, "the end", func() bool {
		return m.Status().StalledSince.IsZero() &&
			second.Status().StalledSince.IsZero()
	})
	if s := m.Status(); s.Partitions[0].Lag != 0 || !s.Partitions[0].HandlingSince.IsZero() {
		t.Errorf("everything is decided: %+v", s)
	}
}

// A halted partition fetches nothing either. While another partition goes on, the process is not stalled.
func TestTheLagOfAHaltedPartition(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	h := newHandler()
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		if events[0].Position.Partition == 0 {
			return nil, errors.New("broken")
		}
		return applied(len(events)), nil
	}
	cfg := config(topic)
	cfg.ResumeEvery = 20 * time.Millisecond
	m := start(t, h, topic, cfg)
	var stood time.Time
	for n := int64(1); n <= 31; n += 10 {
		kafkatest.Produce(t, topic, records(int(min(n, 10)), 0, 1)...)
		await(t, "the lag of the halted partition alone", func() bool {
			s := m.Status()
			return len(s.Halted()) == 1 && partition(s, 0).Lag == n && partition(s, 1).Lag == 0 &&
				partition(s, 1).Next == n
		})
		h.await(t, int(n))
		since := m.Status().StalledSince
		if !since.After(stood) {
			t.Errorf("events were decided, and StalledSince is %v, was %v before", since, stood)
		}
		stood = since
	}
}

// The lag is known with the position, although the broker holds the fetch: the log is read to its end.
func TestTheLagIsKnownWithThePosition(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(10, 0)...)
	cfg := config(topic)
	h := newHandler()
	m := start(t, h, topic, cfg)
	h.await(t, 10)
	m.stop(t)
	cfg.FetchWait, cfg.ResumeEvery = time.Minute, time.Hour
	m = start(t, h, topic, cfg)
	await(t, "the position", func() bool {
		s := m.Status()
		return len(s.Partitions) == 1 && s.Partitions[0].Next == 10
	})
	if s := m.Status(); s.Partitions[0].High != 10 || s.Partitions[0].Lag != 0 || !s.StalledSince.IsZero() {
		t.Errorf("with the position: %+v", s)
	}
}
