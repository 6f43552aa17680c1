package consumer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

func TestTail(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 3)
	var records []kafkatest.Record
	for i := range 30 { // partition 2 stays empty
		records = append(records, kafkatest.Record{Partition: int32(i % 2), Value: fmt.Appendf(nil, "%d", i)})
	}
	kafkatest.Produce(t, topic, records...)
	got, err := consumer.Tail(t.Context(), kafkatest.Brokers(t), topic, 4, consumer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, e := range got {
		values = append(values, fmt.Sprintf("%d:%s", e.Position.Partition, e.Payload))
	}
	slices.Sort(values)
	if want := "0:22 0:24 0:26 0:28 1:23 1:25 1:27 1:29"; strings.Join(values, " ") != want {
		t.Errorf("got %v, want %s", values, want)
	}
	if all, err := consumer.Tail(t.Context(), kafkatest.Brokers(t), topic, 1000, consumer.Config{}); err != nil ||
		len(all) != 30 {
		t.Errorf("%d events of a tail that is longer than the log, want 30 (%v)", len(all), err)
	}
	if _, err := consumer.Tail(t.Context(), kafkatest.Brokers(t), topic+"-missing", 1, consumer.Config{}); err == nil {
		t.Error("no error for a topic that does not exist")
	}
	if _, err := consumer.Tail(t.Context(), kafkatest.Brokers(t), topic, 0, consumer.Config{}); err == nil {
		t.Error("no error for a tail of 0 events")
	}
}

// TestTailKeepsProducersTimes: a time that the broker set may be that of a copy of the record.
func TestTailKeepsProducersTimes(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for of, want := range map[string]bool{"CreateTime": true, "LogAppendTime": false} {
		topic := kafkatest.Topic(t, 1, map[string]string{"message.timestamp.type": of})
		kafkatest.Produce(t, topic, kafkatest.Record{Value: []byte("x")})
		got, err := consumer.Tail(t.Context(), kafkatest.Brokers(t), topic, 1, consumer.Config{})
		if err != nil || len(got) != 1 || got[0].Position.Timestamp.IsZero() == want {
			t.Errorf("%s: %v (%v)", of, got, err)
		}
	}
}
