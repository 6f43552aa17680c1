package relay_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// broker is a publisher with partitions. In each partition it writes the events of a call up to the first that is not
// acked.
type broker struct {
	mu         sync.Mutex
	partitions uint32
	log        []event.Event // in the order of writing, with Position.Partition set
	late       [][]event.Event
	calls      int
	// verdict decides about an event in its partition; nil acks. It is called with the lock held.
	verdict func(e *event.Event, partition int32) answer
}

// answer is the fate of an event: its error, and whether the event is written in spite of it, at once or later.
type answer struct {
	err           error
	written, late bool
}

var (
	errAway    = errors.New("the partition does not answer")
	errNotSent = outcome.Retryable(errors.New("not sent"))
	tooLarge   = answer{err: refusedEvent}
	forbidden  = answer{err: refusedTopic}
)

func newBroker(partitions uint32) *broker { return &broker{partitions: partitions} }

func (b *broker) partition(e *event.Event) int32 {
	h := fnv.New32a()
	if e.Key == "" {
		_, _ = h.Write(e.ID[:])
	} else {
		_, _ = h.Write([]byte(e.Key))
	}
	return int32(h.Sum32() % b.partitions)
}

func (b *broker) Route(context.Context, string) (func(e *event.Event) int32, error) {
	return b.partition, nil
}

func (b *broker) Publish(ctx context.Context, events []event.Event) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	verdicts := make([]error, len(events))
	type place struct {
		topic     string
		partition int32
	}
	stopped := map[place]bool{}
	request := map[place][]event.Event{} // events per partition in this call
	for i := range events {
		e := events[i]
		e.Position.Partition = b.partition(&e)
		at := place{e.Topic, e.Position.Partition}
		if ctx.Err() != nil { // as package publisher has it: that is no outage
			verdicts[i] = outcome.Retryable(ctx.Err())
			continue
		}
		if stopped[at] {
			verdicts[i] = errNotSent
			continue
		}
		request[at] = append(request[at], e)
		var a answer
		if b.verdict != nil {
			a = b.verdict(&e, at.partition)
		}
		if a.err == nil || a.written {
			b.log = append(b.log, e)
		}
		if a.late {
			b.late = append(b.late, request[at])
		}
		if verdicts[i] = a.err; a.err != nil {
			stopped[at] = true
		}
	}
	return verdicts
}

// set replaces the verdict function.
func (b *broker) set(verdict func(e *event.Event, partition int32) answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.verdict = verdict
}

func (b *broker) events() []event.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]event.Event(nil), b.log...)
}

// firsts returns the payloads of a key in the order of their first occurrences.
func (b *broker) firsts(key string) (payloads []string) {
	seen := map[uuid.UUID]bool{}
	for _, e := range b.events() {
		if e.Key == key && !seen[e.ID] {
			seen[e.ID] = true
			payloads = append(payloads, string(e.Payload))
		}
	}
	return payloads
}

// checkWatermark checks that a consumer which remembers the highest number per lane and partition applies every event
// exactly once. It ignores events that are marked as possible repetitions.
func checkWatermark(t *testing.T, log []event.Event) {
	t.Helper()
	checkWatermarkExcept(t, log, nil)
}

// checkWatermarkExcept also ignores the given events.
func checkWatermarkExcept(t *testing.T, log []event.Event, but map[uuid.UUID]bool) {
	t.Helper()
	type mark struct {
		topic, epoch string
		partition    int32
		lane         int16
	}
	highest, applied, excused := map[mark]int64{}, map[uuid.UUID]int{}, map[uuid.UUID]bool{}
	for _, e := range log {
		m := mark{e.Topic, e.Position.Epoch, e.Position.Partition, e.Position.Lane}
		if _, known := applied[e.ID]; !known {
			applied[e.ID] = 0
		}
		excused[e.ID] = excused[e.ID] || e.Position.MaybePublished
		if e.Position.Seq > highest[m] {
			highest[m] = e.Position.Seq
			applied[e.ID]++
		}
	}
	for id, n := range applied {
		if n != 1 && !excused[id] && !but[id] {
			t.Errorf("event %s is applied %d times by a consumer in watermark mode", id, n)
		}
	}
}

// checkKey checks that the first occurrences of a key's payloads are 0, 1, ... want-1.
func checkKey(t *testing.T, b *broker, key string, want int) {
	t.Helper()
	got := b.firsts(key)
	for i, payload := range got {
		if payload != fmt.Sprint(i) {
			t.Fatalf("key %s: %s first occurs where %d was due", key, payload, i)
		}
	}
	if len(got) != want {
		t.Fatalf("key %s: %d events, want %d", key, len(got), want)
	}
}
