package publisher

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/effectonce/effectonce/event"
)

// pinned is a Kafka whose Pin returns err, once gate is closed if there is one.
type pinned struct {
	*fake
	k *Kafka

	mu   sync.Mutex
	err  error
	gate chan struct{}
	sent []int // partitions
}

func newPinned(t *testing.T, partitions int) *pinned {
	p := &pinned{fake: &fake{partitions: partitions}}
	p.produce = func(_ context.Context, r request) *produce.ResponsePartition {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sent = append(p.sent, r.partition)
		return &produce.ResponsePartition{}
	}
	p.k = newKafka(t, []string{"nowhere:1"}, Config{Transport: p.fake, Pin: func(_ context.Context, _, _ string,
		partitions int,
	) (int, error) {
		p.mu.Lock()
		gate, err := p.gate, p.err
		p.mu.Unlock()
		if gate != nil {
			<-gate
		}
		return partitions, err
	}})
	return p
}

func (p *pinned) set(err error, gate chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.gate = err, gate
}

func (p *pinned) grow(partitions int) {
	p.fake.mu.Lock()
	defer p.fake.mu.Unlock()
	p.partitions = partitions
}

// requireNewCount publishes twice at a time while Pin accepts a grown topic's count. Both events must be sent by that
// count.
func (p *pinned) requireNewCount(t *testing.T, e event.Event, count int) {
	t.Helper()
	gate, verdicts, before := make(chan struct{}), make(chan error, 2), len(p.sent)
	p.set(nil, gate)
	for range 2 {
		go func() { verdicts <- p.k.Publish(t.Context(), []event.Event{e})[0] }()
		synctest.Wait()
	}
	close(gate)
	for range 2 {
		if err := <-verdicts; err != nil {
			t.Error(err)
		}
	}
	for _, partition := range p.sent[before:] {
		if partition != choose(&e, count) {
			t.Errorf("sent to partition %d of %d, want %d: by the old count", partition, count, choose(&e, count))
		}
	}
}

// TestP4_ChangedCountIsNotUsedUnpinned: metadata shows another count, and Pin fails. No event is sent by the old count.
// While one caller asks Pin again, the others wait.
func TestP4_ChangedCountIsNotUsedUnpinned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, e := newPinned(t, 2), newEvent("t", "k", "v")
		allAcked(t, p.k.Publish(t.Context(), []event.Event{e}))
		p.grow(97)
		<-time.After(31 * time.Second)
		p.set(errors.New("database away"), nil)
		if err := p.k.Publish(t.Context(), []event.Event{e})[0]; err == nil || isRefusal(err) {
			t.Fatalf("verdict %v, want an unknown outcome", err)
		}
		p.requireNewCount(t, e, 97)
	})
}

// TestP4_UnansweredPinKeepsCountOld: the age of a count runs from Pin's last answer. A call that failed does not renew
// it.
func TestP4_UnansweredPinKeepsCountOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, e := newPinned(t, 2), newEvent("t", "k", "v")
		allAcked(t, p.k.Publish(t.Context(), []event.Event{e}))
		<-time.After(31 * time.Second)
		p.set(errors.New("database away"), nil)
		allAcked(t, p.k.Publish(t.Context(), []event.Event{e}))
		p.grow(97)
		<-time.After(30 * time.Second)
		p.requireNewCount(t, e, 97)
	})
}

// TestGrownTopicWithRequestInFlight: the topic's new count is accepted while a request is in flight. There is still one
// request to a partition at a time.
func TestGrownTopicWithRequestInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, e := newPinned(t, 1), newEvent("t", "k", "v")
		for choose(&e, 2) != 0 {
			e.Key += "k"
		}
		answer, inFlight, most := make(chan struct{}), 0, 0
		p.produce = func(context.Context, request) *produce.ResponsePartition {
			p.mu.Lock()
			inFlight++
			most = max(most, inFlight)
			p.mu.Unlock()
			<-answer
			p.mu.Lock()
			defer p.mu.Unlock()
			inFlight--
			return &produce.ResponsePartition{}
		}
		var calls sync.WaitGroup
		calls.Go(func() { p.k.Publish(t.Context(), []event.Event{e}) })
		synctest.Wait()
		p.grow(2)
		p.k.topic("t").doubt()
		calls.Go(func() { p.k.Publish(t.Context(), []event.Event{e}) })
		synctest.Wait()
		if most != 1 || len(p.k.topic("t").snapshot()) != 2 {
			t.Errorf("%d requests to one partition at a time, of %d partitions", most, len(p.k.topic("t").snapshot()))
		}
		close(answer)
		calls.Wait()
	})
}

// TestRaisedLimitIsUsed: batches were split for the topic's max.message.bytes. Once the topic's metadata is read again,
// whole batches are tried.
func TestRaisedLimitIsUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, requests, most := newPinned(t, 1), 0, 2
		p.produce = func(_ context.Context, r request) *produce.ResponsePartition {
			requests++
			if len(r.values()) > most {
				return code(kafka.MessageSizeTooLarge)
			}
			return &produce.ResponsePartition{}
		}
		batch := make([]event.Event, 8)
		for i := range batch {
			batch[i] = newEvent("t", "k", "v")
		}
		allAcked(t, p.k.Publish(t.Context(), batch))
		most = len(batch)
		<-time.After(31 * time.Second)
		requests = 0
		allAcked(t, p.k.Publish(t.Context(), batch))
		if requests != 1 {
			t.Errorf("%d requests after the limit was raised, want one", requests)
		}
	})
}
