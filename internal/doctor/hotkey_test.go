package doctor

import (
	"fmt"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// TestHotKey: the key that most of the next records have is named, wherever the reading begins.
func TestHotKey(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	produce := func(n int, key func(i int) []byte) {
		var records []kafkatest.Record
		for i := range n {
			records = append(records, kafkatest.Record{Key: key(i), Value: []byte("{}")})
		}
		kafkatest.Produce(t, topic, records...)
	}
	produce(20, func(i int) []byte { return fmt.Append(nil, "account-", i) })
	produce(30, func(int) []byte { return []byte("account-7") })
	produce(60, func(int) []byte { return nil })
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(kafkatest.Brokers(t)...), Timeout: 10 * time.Second, Transport: transport}
	for from, want := range map[int64]string{
		0: "", 25: "", 50: "", 110: "", // of several, of too few, without a key, at the end
	} {
		if got := hotKey(t.Context(), client, place{topic, 0}, from); got != want {
			t.Errorf("from %d: %q", from, got)
		}
	}
	produce(20, func(int) []byte { return []byte("account-7") })
	want := `20 of its next 20 have the key "account-7"`
	if got := hotKey(t.Context(), client, place{topic, 0}, 110); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := hotKey(t.Context(), client, place{topic, 9}, 0); got != "" {
		t.Errorf("of no partition: %q", got)
	}
}
