package kafkatest

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Record is a record in Kafka. Key and Value are nil if Kafka's are null.
type Record struct {
	Partition  int32
	Offset     int64
	Key, Value []byte
	Headers    []Header // in the record's order
	Time       time.Time
}

// Header is one header of a Record.
type Header struct {
	Key   string
	Value []byte
}

// Get returns the first header of that name, or "".
func (r Record) Get(name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// ReadAll reads a topic of the shared broker up to its current end, sorted by partition and offset. It uses another
// client library than the code under test, so that an error in that one cannot hide itself.
func ReadAll(t testing.TB, topic string) []Record {
	t.Helper()
	return ReadAllAt(t, Brokers(t), topic)
}

// ReadAllAt is ReadAll for other brokers, such as a Cluster's.
func ReadAllAt(t testing.TB, brokers []string, topic string) []Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var all []Record
	err := Each(ctx, brokers, rangesOf(t, ctx, brokers, topic), func(r *kgo.Record) { all = append(all, convert(r)) })
	if err != nil {
		t.Fatalf("kafkatest: read %s: %v", topic, err)
	}
	slices.SortFunc(all, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return all
}

func convert(r *kgo.Record) Record {
	out := Record{Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value, Time: r.Timestamp}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, Header{Key: h.Key, Value: h.Value})
	}
	return out
}

// Produce writes records to a topic of the shared broker, as a foreign producer would, and waits for the
// acknowledgement. It ignores Offset; a zero Time is now.
func Produce(t testing.TB, topic string, records ...Record) {
	t.Helper()
	ProduceAt(t, Brokers(t), topic, records...)
}

// ProduceAt is Produce for other brokers.
func ProduceAt(t testing.TB, brokers []string, topic string, records ...Record) {
	t.Helper()
	client := newClient(t, brokers, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite())
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out := make([]*kgo.Record, len(records))
	for i, r := range records {
		out[i] = &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: r.Time}
		for _, h := range r.Headers {
			out[i].Headers = append(out[i].Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	if err := client.ProduceSync(ctx, out...).FirstErr(); err != nil {
		t.Fatalf("kafkatest: produce to %s: %v", topic, err)
	}
}

// DeleteBefore deletes the records of a partition before an offset, as retention does. -1: all.
func DeleteBefore(t testing.TB, topic string, partition int32, offset int64) {
	t.Helper()
	client := newClient(t, Brokers(t))
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req := kmsg.NewPtrDeleteRecordsRequest()
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Partition, rp.Offset = partition, offset
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	for _, shard := range client.RequestSharded(ctx, req) {
		err := shard.Err
		if err == nil {
			err = kerr.ErrorForCode(shard.Resp.(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0].ErrorCode)
		}
		if err != nil {
			t.Fatalf("kafkatest: delete records of %s: %v", topic, err)
		}
	}
}

// Ends returns the end of each partition of a topic of the shared broker.
func Ends(t testing.TB, topic string) map[int32]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	ends := map[int32]int64{}
	for _, r := range rangesOf(t, ctx, Brokers(t), topic) {
		ends[r.Partition] = r.End
	}
	return ends
}

func rangesOf(t testing.TB, ctx context.Context, brokers []string, topic string) []Range {
	t.Helper()
	client := newClient(t, brokers)
	defer client.Close()
	ranges, err := Ranges(ctx, client, topic)
	if err != nil {
		t.Fatalf("kafkatest: offsets of %s: %v", topic, err)
	}
	return ranges
}
