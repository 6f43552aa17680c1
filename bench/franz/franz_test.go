package franz

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

// TestPublish: records, partitions and headers are the same as those of package publisher; each event has a verdict,
// and nothing is written behind a refused one.
func TestPublish(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 4, map[string]string{"max.message.bytes": "2000"})
	p, err := New(kafkatest.Brokers(t), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	var events []event.Event
	for i := range 20 {
		e := event.Event{
			ID: event.NewID(), Topic: topic, Key: fmt.Sprint("k", i%5), Type: "T",
			Payload: fmt.Append(nil, i),
		}
		if i == 7 {
			e.Payload = bytes.Repeat([]byte{byte(i), 0xfe, 3, 0x55}, 10_000)
			for j := range e.Payload {
				e.Payload[j] = byte(j * j * 31 >> 3) // does not compress away
			}
		}
		events = append(events, e)
	}
	route, err := p.Route(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	verdicts := p.Publish(t.Context(), events)
	written := map[string]int32{}
	for _, r := range kafkatest.ReadAll(t, topic) {
		written[r.Get("ce_id")] = r.Partition
	}
	refused := route(&events[7])
	for i, err := range verdicts {
		at, there := written[events[i].ID.String()]
		want := i != 7 && (i < 7 || route(&events[i]) != refused)
		if there != want || (err == nil) != want || there && at != route(&events[i]) {
			t.Errorf("event %d: in the log %v, to be %v; verdict %v", i, there, want, err)
		}
	}
	var r interface{ Rejected() bool }
	if r, _ = verdicts[7].(interface{ Rejected() bool }); r == nil || !r.Rejected() {
		t.Errorf("the verdict of the large one is %v", verdicts[7])
	}
}
