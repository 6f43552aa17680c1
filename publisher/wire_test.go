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

// TestNewTopicsShareATransport: what a call has for topics that are new costs one Transport, however many they are.
func TestNewTopicsShareATransport(t *testing.T) {
	t.Parallel()
	k := newKafka(t, []string{"nowhere:1"}, Config{})
	f := &fake{partitions: 1, produce: func(context.Context, request) *produce.ResponsePartition {
		return &produce.ResponsePartition{}
	}}
	var made []int // of how many topics each Transport was
	k.wire.make = func(topics []string) kafka.RoundTripper {
		made = append(made, len(topics))
		return f
	}
	for i, want := range [][]int{{100}, {100, 200}} {
		for range 2 { // the second time nothing is new
			var events []event.Event
			for n := range 100 * (i + 1) {
				events = append(events, some(fmt.Sprint("t", n), "k", "0"))
			}
			allAcked(t, k.Publish(t.Context(), events))
			if !slices.Equal(made, want) {
				t.Fatalf("there were Transports of %v topics, want %v", made, want)
			}
		}
	}
}
