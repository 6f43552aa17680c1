package consumer_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

func produceAt(t testing.TB, brokers []string, topic string, rs []kafkatest.Record, opts ...kgo.Opt) {
	t.Helper()
	client := franzClient(t, brokers, opts...)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := client.ProduceSync(ctx, kgoRecords(topic, rs)...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func franzClient(t testing.TB, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(brokers...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func kgoRecords(topic string, rs []kafkatest.Record) (out []*kgo.Record) {
	for _, r := range rs {
		k := &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kgo.RecordHeader(h))
		}
		out = append(out, k)
	}
	return out
}

// Producers such as Kafka Streams write transactions. Handlers get neither their markers nor aborted records.
func TestTransactionsOfOtherProducers(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 1)
	client := franzClient(t, kafkatest.Brokers(t), kgo.TransactionalID(topic), kgo.ProducerLinger(0))
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	end := map[bool]kgo.TransactionEndTry{true: kgo.TryCommit, false: kgo.TryAbort}
	for _, commit := range []bool{true, false, false, true, false} {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := client.ProduceSync(ctx, kgoRecords(topic, records(3, 0))...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if !commit {
			// Another producer's record in the middle of an aborted transaction is not part of it.
			kafkatest.Produce(t, topic, kafkatest.Record{Key: []byte("between")})
		}
		if err := client.EndTransaction(ctx, end[commit]); err != nil {
			t.Fatal(err)
		}
	}
	h := newHandler()
	m := start(t, h, topic, config(topic))
	h.await(t, 9)
	await(t, "the end of the log", func() bool {
		s := m.Status()
		return len(s.Partitions) == 1 && s.Partitions[0].Next == 23 && s.Partitions[0].Lag == 0
	})
	m.stop(t)
	var got []int64
	for _, e := range h.byPartition()[0] {
		got = append(got, e.Position.Offset)
	}
	// commit 0-2, marker 3; abort 4-6, other 7, marker 8; abort 9-11, other 12, marker 13; commit 14-16, marker 17;
	// abort 18-20, other 21, marker 22
	want := []int64{0, 1, 2, 7, 12, 14, 15, 16, 21}
	if len(got) != len(want) {
		t.Fatalf("offsets %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("offsets %v, want %v", got, want)
		}
	}
	if at := committed(t, kafkatest.Brokers(t), topic, topic, 1); at[0] != 23 {
		t.Errorf("committed %v, want the end of the log after the last marker", at)
	}

	cfg := config(topic + "-uncommitted")
	cfg.ReadUncommitted = true
	h = newHandler()
	start(t, h, topic, cfg)
	h.await(t, 18)
}

func TestCompression(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	codecs := []kgo.CompressionCodec{
		kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(),
		kgo.ZstdCompression(),
	}
	for _, codec := range codecs {
		produceAt(t, kafkatest.Brokers(t), topic, records(100, 0), kgo.ProducerBatchCompression(codec))
	}
	h := newHandler()
	start(t, h, topic, config(topic))
	seen := h.await(t, 400)[0]
	offsetsOf(t, seen, 0, 400)
	for i, e := range seen {
		if e.Key != string(e.Payload) || e.Type != "Happened" {
			t.Fatalf("event %d: %+v", i, e)
		}
	}
}

func TestRetentionThatEatsUnreadRecordsIsLoud(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, policy := range map[string]consumer.LostPolicy{
		"continue": consumer.LostContinue,
		"halt":     consumer.LostHalt,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, records(5, 0)...)
			h := newHandler()
			m := start(t, h, topic, config(topic))
			h.await(t, 5)
			m.stop(t)
			kafkatest.Produce(t, topic, records(10, 0)...)
			kafkatest.DeleteBefore(t, topic, 0, 12)

			lost, halted := make(chan consumer.LostRange, 10), make(chan consumer.Halt, 10)
			logBuf := &logs{}
			cfg := config(topic)
			cfg.OnLost = policy
			cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
			cfg.Observer.Lost = func(l consumer.LostRange) { lost <- l }
			cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
			h = newHandler()
			m = start(t, h, topic, cfg)
			if l := recv(t, "the loss", lost); l.From != 5 || l.To != 12 || l.Topic != topic {
				t.Errorf("lost %+v", l)
			}
			if policy == consumer.LostContinue {
				seen := h.await(t, 3)[0]
				if offsetsOf(t, seen, 12, 15); seen[0].Position.Absent != 7 {
					t.Errorf("%d offsets before it have no record, want 7", seen[0].Position.Absent)
				}
			} else if x := recv(t, "the halt", halted); x.Offset != 5 {
				t.Errorf("halt %+v", x)
			}
			m.stop(t)
			want := map[consumer.LostPolicy]int64{consumer.LostContinue: 15, consumer.LostHalt: 5}[policy]
			if got := committed(t, kafkatest.Brokers(t), topic, topic, 1); got[0] != want {
				t.Errorf("committed %v, want %d", got, want)
			}
			if logBuf.count("from=5 to=12") != 1 {
				t.Errorf("log:\n%s", logBuf.b.String())
			}
		})
	}
}

// A record with too many headers halts its partition. The other partition goes on.
func TestTooManyHeadersHaltThePartition(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	bomb := records(1, 0)
	for range event.MaxHeaders {
		bomb[0].Headers = append(bomb[0].Headers, kafkatest.Header{})
	}
	produceAt(t, kafkatest.Brokers(t), topic, append(records(1, 0), bomb...),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	kafkatest.Produce(t, topic, records(5, 1)...)
	halted := make(chan consumer.Halt, 10)
	cfg := config(topic)
	cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
	h := newHandler()
	start(t, h, topic, cfg)
	if x := recv(t, "the halt", halted); x.ID != 0 || x.Offset != 1 ||
		!strings.Contains(x.Err.Error(), "the record at offset 1 has") {
		t.Errorf("%+v", x)
	}
	h.await(t, 6)
}

// TestHaltAtALossSaysHowToGoOn: with a handler that keeps its progress, the group's offset alone does not lead behind
// the loss.
func TestHaltAtALossSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(5, 0)...)
	h := newKeeping()
	m := start(t, h, topic, config(topic))
	h.await(t, 5)
	m.stop(t)
	h.decided(0, 5)
	kafkatest.Produce(t, topic, records(10, 0)...)
	kafkatest.DeleteBefore(t, topic, 0, 12)
	cfg := config(topic)
	halted := make(chan consumer.Halt, 10)
	cfg.OnLost = consumer.LostHalt
	cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
	for range 2 { // before and after an operator has set the group's offset
		h.handler = newHandler()
		m = start(t, h, topic, cfg)
		if x := recv(t, "the halt", halted); !strings.Contains(x.Err.Error(), "relay inbox skip") {
			t.Error(x.Err)
		}
		m.stop(t)
		commitWith(t, kafkatest.Brokers(t), topic, 12, "")
	}
	h.decided(0, 12) // as the command does
	h.handler = newHandler()
	m = start(t, h, topic, cfg)
	offsetsOf(t, h.await(t, 3)[0], 12, 15)
	m.stop(t)
}
