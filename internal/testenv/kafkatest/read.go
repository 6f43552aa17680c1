package kafkatest

import (
	"cmp"
	"context"
	"fmt"
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
	first, end := offsets(t, ctx, brokers, topic, -2), offsets(t, ctx, brokers, topic, -1)
	start := map[int32]kgo.Offset{}
	for p, high := range end {
		if high > first[p] {
			start[p] = kgo.NewOffset().At(first[p])
		} else {
			delete(end, p) // empty
		}
	}
	if len(start) == 0 {
		return nil
	}
	client := newClient(t, brokers, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}),
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(100*time.Millisecond))
	defer client.Close()
	var all []Record
	for len(end) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("kafkatest: read %s: %v", topic, err)
		}
		fetches.EachError(func(_ string, p int32, err error) { t.Fatalf("kafkatest: read %s/%d: %v", topic, p, err) })
		fetches.EachRecord(func(r *kgo.Record) {
			if high, ok := end[r.Partition]; ok && r.Offset < high && !r.Attrs.IsControl() {
				all = append(all, convert(r))
			}
			if r.Offset+1 >= end[r.Partition] {
				delete(end, r.Partition)
			}
		})
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

// Ends returns the end of each partition of a topic of the shared broker.
func Ends(t testing.TB, topic string) map[int32]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return offsets(t, ctx, Brokers(t), topic, -1)
}

// offsets returns the earliest (timestamp -2) or the end offset (-1) of each partition.
func offsets(t testing.TB, ctx context.Context, brokers []string, topic string, timestamp int64) map[int32]int64 {
	t.Helper()
	client := newClient(t, brokers)
	defer client.Close()
	partitions, err := countLeaders(ctx, client, topic)
	if err != nil {
		t.Fatalf("kafkatest: metadata of %s: %v", topic, err)
	}
	out, err := listOffsets(ctx, client, topic, partitions, timestamp)
	if err != nil {
		t.Fatalf("kafkatest: offsets of %s: %v", topic, err)
	}
	return out
}

// listOffsets asks the leader of each partition.
func listOffsets(ctx context.Context, client *kgo.Client, topic string, partitions int, timestamp int64) (
	map[int32]int64, error,
) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	reqTopic := kmsg.NewListOffsetsRequestTopic()
	reqTopic.Topic = topic
	for p := range partitions {
		part := kmsg.NewListOffsetsRequestTopicPartition()
		part.Partition, part.Timestamp, part.CurrentLeaderEpoch = int32(p), timestamp, -1
		reqTopic.Partitions = append(reqTopic.Partitions, part)
	}
	req.Topics = append(req.Topics, reqTopic)
	out := map[int32]int64{}
	// The client splits the request by leader.
	for _, shard := range client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, shard.Err
		}
		for _, rt := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range rt.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("partition %d: %w", p.Partition, err)
				}
				out[p.Partition] = p.Offset
			}
		}
	}
	return out, nil
}
