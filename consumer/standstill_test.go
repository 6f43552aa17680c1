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

// hanging is a handler that decides nothing until it is let go.
func hanging(letGo <-chan struct{}) (h *handler, called chan consumer.Partition) {
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

// While a handler hangs nothing is fetched. The lag is true all the same, and since when the process and the handler
// stand is told, over a rebalance as well.
func TestHangingHandlerIsReported(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	letGo := make(chan struct{})
	h, called := hanging(letGo)
	cfg := config(topic)
	cfg.ResumeEvery = 20 * time.Millisecond
	m := start(t, h, topic, cfg)
	await(t, "the ends of both logs", func() bool {
		s := m.Status()
		return len(s.Partitions) == 2 && s.Partitions[0].Lag == 0 && s.Partitions[1].Lag == 0
	})
	if s := m.Status(); !s.StalledSince.IsZero() || !s.Partitions[0].HandlingSince.IsZero() {
		t.Errorf("nothing waits, and it stands still: %+v", s)
	}
	kafkatest.Produce(t, topic, records(1, 0, 1)...)
	recv(t, "the handler's call", called)
	recv(t, "its call for the other partition", called)
	for _, lag := range []int64{11, 21} { // the first of these are fetched, one chunk ahead of the handler
		kafkatest.Produce(t, topic, records(10, 0, 1)...)
		await(t, "the lag", func() bool {
			s := m.Status()
			return s.Partitions[0].Lag == lag && s.Partitions[1].Lag == lag
		})
	}
	before := m.Status()
	if before.StalledSince.IsZero() || before.Partitions[0].HandlingSince.IsZero() {
		t.Errorf("since when it stands is not told: %+v", before)
	}
	second := start(t, h, topic, cfg)
	recv(t, "the handler's call after the rebalance", called)
	await(t, "a share of the partitions", func() bool {
		return len(m.Status().Partitions) == 1 &&
			len(second.Status().Partitions) == 1
	})
	if s := m.Status(); s.Generation == before.Generation || !s.StalledSince.Equal(before.StalledSince) {
		t.Errorf("generation %d: stands since %v; generation %d: since %v", before.Generation, before.StalledSince,
			s.Generation, s.StalledSince)
	}
	close(letGo)
	h.await(t, 42)
	await(t, "the end", func() bool {
		return m.Status().StalledSince.IsZero() &&
			second.Status().StalledSince.IsZero()
	})
	if s := m.Status(); s.Partitions[0].Lag != 0 || !s.Partitions[0].HandlingSince.IsZero() {
		t.Errorf("all is decided: %+v", s)
	}
}

// A halted partition fetches nothing either. As long as another one goes on, the process does not stand still.
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
		await(t, "the lag of the halted one, and no other", func() bool {
			s := m.Status()
			return len(s.Halted()) == 1 && partition(s, 0).Lag == n && partition(s, 1).Lag == 0
		})
		h.await(t, int(n))
		since := m.Status().StalledSince
		if !since.After(stood) {
			t.Errorf("something was decided, and it stands since %v, as before: %v", since, stood)
		}
		stood = since
	}
}

// Before the first answer to a fetch, nobody knows how long a log is.
func TestTheLagIsUnknownAtFirst(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(10, 0)...)
	cfg := config(topic)
	h := newHandler()
	m := start(t, h, topic, cfg)
	h.await(t, 10)
	m.stop(t)
	// the log is read to its end, so that the broker holds the fetch
	cfg.FetchWait, cfg.ResumeEvery = time.Minute, time.Hour
	m = start(t, h, topic, cfg)
	await(t, "the position", func() bool {
		s := m.Status()
		return len(s.Partitions) == 1 && s.Partitions[0].Next == 10
	})
	if s := m.Status(); s.Partitions[0].High != -1 || s.Partitions[0].Lag != -1 || s.StalledSince.IsZero() {
		t.Errorf("with an end that is not known: %+v", s)
	}
}
