package publisher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/outcome"
)

// newKafka makes a Kafka. Unless the test sets a Timeout or a Transport, it waits long for a busy broker: without an
// answer in time the outcome is unknown.
func newKafka(t testing.TB, brokers []string, cfg Config) *Kafka {
	t.Helper()
	if cfg.Timeout == 0 && cfg.Transport == nil {
		cfg.Timeout = time.Minute
	}
	k, err := NewKafka(brokers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func newEvent(topic, key string, payload string) event.Event {
	return event.Event{ID: event.NewID(), Topic: topic, Key: key, Type: "T", Payload: []byte(payload)}
}

func allAcked(t testing.TB, verdicts []error) {
	t.Helper()
	for i, err := range verdicts {
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
}

func TestTheWireIsAsDesigned(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	for _, compression := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		k := newKafka(t, kafkatest.Brokers(t), Config{Compression: compression})
		e := event.Event{
			ID: event.NewID(), Source: "payments", Tenant: "acme", Topic: topic, Key: "acc-1", Type: compression,
			ContentType: event.ContentTypeJSON, Payload: []byte(`{"a":1}`), Time: time.Date(2001, 2, 3, 4, 5, 6, 7000,
				time.UTC),
			Headers:  map[string]string{"zeta": "z", "traceparent": "00-01-02-01", "alpha": ""},
			Position: event.Position{Lane: 7, Epoch: "x.1", Seq: 42},
		}
		tombstone, empty, keyless := e, e, e
		tombstone.Payload, empty.Payload, keyless.Key = nil, []byte{}, ""
		before := time.Now().Add(-time.Second)
		allAcked(t, k.Publish(t.Context(), []event.Event{e, tombstone, empty, keyless}))
		all := kafkatest.ReadAll(t, topic)
		got := all[len(all)-4:]
		var headers []string
		for _, h := range got[0].Headers {
			headers = append(headers, h.Key+"="+string(h.Value))
		}
		want := "ce_specversion=1.0 ce_id=" + e.ID.String() + " ce_source=payments ce_type=" + compression +
			" ce_time=2001-02-03T04:05:06.000007Z content-type=application/json ce_tenant=acme ce_epoch=x.1 ce_lane=7" +
			" ce_laneseq=42 traceparent=00-01-02-01 alpha= zeta=z"
		if s := strings.Join(headers, " "); s != want {
			t.Errorf("headers\n got %s\nwant %s", s, want)
		}
		if string(got[0].Key) != "acc-1" || string(got[0].Value) != `{"a":1}` {
			t.Errorf("%s: key %q value %q", compression, got[0].Key, got[0].Value)
		}
		if got[0].Time.Before(before) {
			t.Errorf("%s: the record's time is %s, want the time of publishing", compression, got[0].Time)
		}
		if got[1].Value != nil || got[2].Value == nil || len(got[2].Value) != 0 {
			t.Errorf("%s: tombstone %#v, empty %#v", compression, got[1].Value, got[2].Value)
		}
		if got[3].Key != nil || string(got[0].Key) == "" {
			t.Errorf("%s: key of a keyless event %#v", compression, got[3].Key)
		}
	}
}

func TestConcurrentCallsKeepTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	const callers, rounds, per = 4, 10, 200
	topic := kafkatest.Topic(t, 4)
	k := newKafka(t, kafkatest.Brokers(t), Config{BatchBytes: 2048})
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for r := range rounds {
				events := make([]event.Event, per)
				for i := range events {
					events[i] = newEvent(topic, fmt.Sprintf("%d-%d", c, i%7), fmt.Sprintf("%06d", r*per+i))
				}
				for i, err := range k.Publish(context.Background(), events) {
					if err != nil {
						t.Errorf("event %d: %v", i, err)
					}
				}
			}
		})
	}
	wg.Wait()
	last, n := map[string]string{}, 0
	for _, r := range kafkatest.ReadAll(t, topic) {
		key, value := string(r.Key), string(r.Value)
		if value <= last[key] {
			t.Fatalf("key %s: %s after %s", key, value, last[key])
		}
		if want := partitionOf(key, 4); int(r.Partition) != want {
			t.Fatalf("key %s is in partition %d, want %d", key, r.Partition, want)
		}
		last[key], n = value, n+1
	}
	if n != callers*rounds*per {
		t.Fatalf("%d records, want %d", n, callers*rounds*per)
	}
}

func TestTooLargeIsSplitAndOnlyASingleOneRefused(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1, map[string]string{"max.message.bytes": "4000"})
	k := newKafka(t, kafkatest.Brokers(t), Config{Compression: CompressionNone})
	var events []event.Event
	for i := range 100 {
		events = append(events, newEvent(topic, "k", fmt.Sprintf("%03d%s", i, strings.Repeat("x", 500))))
	}
	events[70].Payload = make([]byte, 5000)
	verdicts := k.Publish(t.Context(), events)
	allAcked(t, verdicts[:70])
	var r *outcome.Refusal
	if !errors.As(verdicts[70], &r) || r.Topic || r.Code != "MESSAGE_TOO_LARGE" {
		t.Fatalf("the event that is too large: %v", verdicts[70])
	}
	for _, err := range verdicts[71:] {
		if !isUnsent(err) || isRefusal(err) {
			t.Fatalf("after the event that is too large: %v", err)
		}
	}
	got := kafkatest.ReadAll(t, topic)
	if len(got) != 70 {
		t.Fatalf("%d records, want 70", len(got))
	}
	for i, r := range got {
		if !strings.HasPrefix(string(r.Value), fmt.Sprintf("%03d", i)) {
			t.Fatalf("record %d is %.3s", i, r.Value)
		}
	}
}

func TestRecordRefusedByTopic(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 1, map[string]string{"cleanup.policy": "compact"}) // refuses null keys
	k := newKafka(t, kafkatest.Brokers(t), Config{})
	var events []event.Event
	for i := range 20 {
		events = append(events, newEvent(topic, "k", fmt.Sprint(i)))
	}
	events[7].Key, events[13].Key = "", ""
	verdicts := k.Publish(t.Context(), events)
	allAcked(t, verdicts[:7])
	var r *outcome.Refusal
	if !errors.As(verdicts[7], &r) || r.Topic || r.Code != "INVALID_RECORD" {
		t.Fatalf("the keyless event: %v", verdicts[7])
	}
	for _, err := range verdicts[8:] {
		if !isUnsent(err) {
			t.Fatalf("after the keyless event: %v", err)
		}
	}
	if got := kafkatest.ReadAll(t, topic); len(got) != 7 {
		t.Fatalf("%d records, want 7", len(got))
	}
}

// TestUnknownTopicIsRefusedAtOnce: a topic that does not exist stops no other one, and is used once it exists.
func TestUnknownTopicIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	topic := "not-there-" + event.NewID().String()
	k := newKafka(t, kafkatest.Brokers(t), Config{})
	var r *outcome.Refusal
	if err := k.Publish(t.Context(), []event.Event{newEvent(topic, "k", "v")})[0]; !errors.As(err, &r) ||
		!r.Topic || !errors.Is(err, kafka.UnknownTopicOrPartition) {
		t.Fatalf("verdict %v", err)
	}
	kafkatest.CreateTopic(t, kafkatest.Brokers(t), topic, 1)
	awaitAck(t, k, topic)
}

// awaitAck publishes events until one is acknowledged.
func awaitAck(t *testing.T, k *Kafka, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := k.Publish(ctx, []event.Event{newEvent(topic, "k", "v")})[0]
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("still not acknowledged: %v", err)
		}
	}
}

func TestChangedPartitionCountIsRefused(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	k := newKafka(t, kafkatest.Brokers(t), Config{RecheckEvery: time.Nanosecond})
	allAcked(t, k.Publish(t.Context(), []event.Event{newEvent(topic, "k", "v")}))
	client := &kafka.Client{Addr: kafka.TCP(kafkatest.Brokers(t)...), Transport: &kafka.Transport{}}
	defer client.Transport.(*kafka.Transport).CloseIdleConnections()
	res, err := client.CreatePartitions(t.Context(), &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 5}},
	})
	if err == nil {
		err = res.Errors[topic]
	}
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		err := k.Publish(t.Context(), []event.Event{newEvent(topic, "k", "v")})[0]
		// Metadata is a few seconds old at most. New partitions may have no leader yet, which is an unknown outcome.
		if err == nil || !isRefusal(err) {
			continue
		}
		var changed *PartitionsChangedError
		if !errors.As(err, &changed) || changed.Pinned != 2 || changed.Found != 5 {
			t.Fatal(err)
		}
		break
	}
	if n, err := k.Partitions(t.Context(), topic); n != 5 || err != nil {
		t.Errorf("Partitions: %d, %v", n, err)
	}
}

func TestUnreachableBrokerIsUnknownOutcome(t *testing.T) {
	t.Parallel()
	c := kafkatest.NewCluster(t, 1)
	topic := kafkatest.TopicAt(t, c.Brokers(), 2)
	k := newKafka(t, c.Brokers(), Config{Timeout: 2 * time.Second})
	awaitAck(t, k, topic)
	c.Kill(0)
	// late is made while the broker is down.
	late := newKafka(t, c.Brokers(), Config{Timeout: 2 * time.Second})
	for range 3 {
		for _, k := range []*Kafka{k, late} {
			err := k.Publish(t.Context(), []event.Event{newEvent(topic, "k", "v")})[0]
			if err == nil || isRefusal(err) {
				t.Fatalf("while the broker is down: %v", err)
			}
		}
	}
	c.Start(t, 0)
	awaitAck(t, k, topic)
	awaitAck(t, late, topic)
}

// closeCounter counts the calls of CloseIdleConnections.
type closeCounter struct {
	*kafka.Transport
	n atomic.Int64
}

func (c *closeCounter) CloseIdleConnections() {
	c.n.Add(1)
	c.Transport.CloseIdleConnections()
}

// TestShare: a shared Kafka does not close the connections, and calls its own Pin.
func TestShare(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	wire, pins := &closeCounter{Transport: &kafka.Transport{}}, 0
	pin := func(_ context.Context, _, _ string, partitions int) (int, error) {
		pins++
		return partitions, nil
	}
	k := newKafka(t, kafkatest.Brokers(t), Config{Pin: pin, Transport: wire, Timeout: time.Minute})
	allAcked(t, k.Publish(t.Context(), []event.Event{newEvent(topic, "k", "")}))
	before := wire.n.Load()
	for range 3 {
		s := k.Share(pin, k.cfg.Logger, k.cfg.Observer)
		allAcked(t, s.Publish(t.Context(), []event.Event{newEvent(topic, "k", "")}))
		_ = s.Close()
		if err := s.Publish(t.Context(), []event.Event{newEvent(topic, "k", "")})[0]; !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if n := wire.n.Load() - before; n != 0 {
		t.Errorf("the shared connections were closed %d times", n)
	}
	if pins != 4 {
		t.Errorf("%d calls of Pin, want one for each of 4 Kafkas", pins)
	}
	if _ = k.Close(); wire.n.Load() == before {
		t.Error("the owner does not close the connections")
	}
}
