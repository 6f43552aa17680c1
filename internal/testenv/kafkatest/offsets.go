package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/internal/sleep"
)

// Range is the offsets of a partition from First up to End.
type Range struct {
	Topic      string
	Partition  int32
	First, End int64
}

// Ranges returns what each partition of a topic holds. It fails unless all of them have a leader.
func Ranges(ctx context.Context, client *kgo.Client, topic string) ([]Range, error) {
	partitions, err := countLeaders(ctx, client, topic)
	if err != nil {
		return nil, err
	}
	first, err := listOffsets(ctx, client, topic, partitions, -2)
	if err != nil {
		return nil, err
	}
	end, err := listOffsets(ctx, client, topic, partitions, -1)
	ranges := make([]Range, partitions)
	for i := range ranges {
		p := int32(i)
		ranges[i] = Range{Topic: topic, Partition: p, First: first[p], End: end[p]}
	}
	return ranges, err
}

// listOffsets asks the leader of each partition for its earliest (timestamp -2) or its end offset (-1).
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

// Each calls do for the records in ranges of one topic, in order within a partition.
func Each(ctx context.Context, brokers []string, ranges []Range, do func(*kgo.Record)) error {
	from, open := map[int32]kgo.Offset{}, map[int32]int64{}
	for _, r := range ranges {
		if r.First < r.End {
			from[r.Partition], open[r.Partition] = kgo.NewOffset().At(r.First), r.End
		}
	}
	if len(open) == 0 {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{ranges[0].Topic: from}),
		kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for len(open) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end, ok := open[r.Partition]
			if ok && r.Offset < end && !r.Attrs.IsControl() {
				do(r)
			}
			if ok && r.Offset+1 >= end {
				delete(open, r.Partition)
			}
		})
	}
	return nil
}

// Committed returns the offset that a group has committed for each partition of a topic, -1 for none. A new cluster has
// no coordinator for a moment.
func Committed(ctx context.Context, client *kgo.Client, group string, topic []Range) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		offsets, err := committed(ctx, client, group, topic)
		if !errors.Is(err, kerr.CoordinatorNotAvailable) || sleep.For(ctx, 100*time.Millisecond) != nil {
			return offsets, err
		}
	}
}

func committed(ctx context.Context, client *kgo.Client, group string, topic []Range) (map[int32]int64, error) {
	one := kmsg.NewOffsetFetchRequestTopic()
	for _, r := range topic {
		one.Topic, one.Partitions = r.Topic, append(one.Partitions, r.Partition)
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.Topics = group, append(req.Topics, one)
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, err
	}
	out := map[int32]int64{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
			}
			out[p.Partition] = p.Offset
		}
	}
	return out, nil
}
