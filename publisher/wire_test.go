package publisher

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/effectonce/effectonce/event"
)

// TestNewTopicsShareATransport: a call makes one Transport for all its new topics, however many.
func TestNewTopicsShareATransport(t *testing.T) {
	t.Parallel()
	k := newKafka(t, []string{"nowhere:1"}, Config{})
	f := &fake{partitions: 1, produce: func(context.Context, request) *produce.ResponsePartition {
		return &produce.ResponsePartition{}
	}}
	var made []int // number of topics of each Transport
	k.wire.make = func(topics []string) kafka.RoundTripper {
		made = append(made, len(topics))
		return f
	}
	for i, want := range [][]int{{100}, {100, 200}} {
		for range 2 { // the second call has no new topics
			var events []event.Event
			for n := range 100 * (i + 1) {
				events = append(events, newEvent(fmt.Sprint("t", n), "k", "0"))
			}
			allAcked(t, k.Publish(t.Context(), events))
			if !slices.Equal(made, want) {
				t.Fatalf("there were Transports of %v topics, want of %v", made, want)
			}
		}
	}
}
