package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const partitions = 6

// topic is the demo's access to Kafka. It uses another client library than the relay and the workers, so that an error
// in theirs cannot hide itself.
type topic struct {
	client  *kgo.Client
	brokers []string
	name    string
	created bool // by the demo
}

// openTopic creates the topic, or opens an empty one.
func openTopic(ctx context.Context, brokers []string, name string) (*topic, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.DisableIdempotentWrite())
	if err != nil {
		return nil, fmt.Errorf("connecting to Kafka: %w", err)
	}
	t := &topic{client: client, brokers: brokers, name: name}
	if err := t.open(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("topic %q: %w", name, err)
	}
	return t, nil
}

func (t *topic) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = t.name, partitions, -1
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 20_000
	req.Topics = append(req.Topics, one)
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	t.created = err == nil
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return err
	}
	// A new topic has no leaders at first.
	end, err := t.offsets(ctx, -1)
	for ; err != nil; end, err = t.offsets(ctx, -1) {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, at := range end {
		if at > 0 && !t.created {
			return errors.New("the topic holds records: name an empty one, or omit --topic")
		}
	}
	return nil
}

// remove deletes the groups, and the topic if the demo created it.
func (t *topic) remove(ctx context.Context, groups ...string) error {
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = groups
	_, err := del.RequestWith(ctx, t.client)
	if !t.created {
		return err
	}
	one := kmsg.NewDeleteTopicsRequestTopic()
	one.Topic = &t.name
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames, req.Topics = []string{t.name}, append(req.Topics, one)
	req.TimeoutMillis = 10_000
	_, err2 := req.RequestWith(ctx, t.client)
	return errors.Join(err, err2)
}

// offsets returns the earliest (timestamp -2) or the end offset (-1) of each partition.
func (t *topic) offsets(ctx context.Context, timestamp int64) (map[int32]int64, error) {
	meta := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = &t.name
	meta.Topics = append(meta.Topics, mt)
	known, err := meta.RequestWith(ctx, t.client)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(known.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	one := kmsg.NewListOffsetsRequestTopic()
	one.Topic = t.name
	for _, mp := range known.Topics[0].Partitions {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = mp.Partition, timestamp
		one.Partitions = append(one.Partitions, p)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	req.Topics = append(req.Topics, one)
	out := map[int32]int64{}
	// Split by leader; each shard answers for its partitions.
	for _, shard := range t.client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, shard.Err
		}
		for _, rt := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range rt.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, err
				}
				out[p.Partition] = p.Offset
			}
		}
	}
	if len(out) == 0 || len(out) != len(one.Partitions) {
		return nil, errors.New("some partitions have not answered")
	}
	return out, nil
}

// committed reports whether a group has committed the end offset of every partition.
func (t *topic) committed(ctx context.Context, group string) (bool, error) {
	end, err := t.offsets(ctx, -1)
	if err != nil {
		return false, err
	}
	one := kmsg.NewOffsetFetchRequestTopic()
	one.Topic = t.name
	for p := range end {
		one.Partitions = append(one.Partitions, p)
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	req.Topics = append(req.Topics, one)
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return false, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return false, err
	}
	for _, rt := range resp.Topics {
		for _, p := range rt.Partitions {
			if p.ErrorCode == 0 && p.Offset >= end[p.Partition] {
				delete(end, p.Partition)
			}
		}
	}
	for _, at := range end {
		if at > 0 {
			return false, nil
		}
	}
	return true, nil
}

// scan reads the records up to the current end, each partition in the order of its offsets.
func (t *topic) scan(ctx context.Context) ([]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	first, err := t.offsets(ctx, -2)
	if err != nil {
		return nil, err
	}
	end, err := t.offsets(ctx, -1)
	if err != nil {
		return nil, err
	}
	start := map[int32]kgo.Offset{}
	for p, high := range end {
		if high <= first[p] {
			delete(end, p)
			continue
		}
		start[p] = kgo.NewOffset().At(first[p])
	}
	if len(start) == 0 {
		return nil, nil
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(t.brokers...), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{t.name: start}))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var all []*kgo.Record
	for len(end) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("reading topic %q: %w", t.name, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			high, wanted := end[r.Partition]
			if wanted && r.Offset < high {
				all = append(all, r)
			}
			if r.Offset+1 >= high {
				delete(end, r.Partition)
			}
		})
	}
	return all, nil
}

// redeliver produces every n-th record again, byte for byte, as a producer does that lost the first reply.
func (t *topic) redeliver(ctx context.Context, n int) (int, error) {
	records, err := t.scan(ctx)
	if err != nil {
		return 0, err
	}
	var again []*kgo.Record
	for i := 0; i < len(records); i += n {
		r := records[i]
		again = append(again, &kgo.Record{
			Topic: t.name, Partition: r.Partition, Key: r.Key, Value: r.Value,
			Headers: r.Headers,
		})
	}
	return len(again), t.client.ProduceSync(ctx, again...).FirstErr()
}

// header returns the value of a record's header, or "".
func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
