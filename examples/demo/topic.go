package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
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

// openTopic creates the topic with settings, or opens an empty one.
func openTopic(ctx context.Context, brokers []string, name string, settings map[string]string) (*topic, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.DisableIdempotentWrite())
	if err != nil {
		return nil, fmt.Errorf("connecting to Kafka: %w", err)
	}
	t := &topic{client: client, brokers: brokers, name: name}
	if err := t.open(ctx, settings); err != nil {
		client.Close()
		return nil, fmt.Errorf("topic %q: %w", name, err)
	}
	return t, nil
}

func (t *topic) open(ctx context.Context, settings map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := kafkatest.Create(ctx, t.client, t.name, partitions, settings)
	t.created = err == nil
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return err
	}
	// A new topic has no leaders at first.
	ranges, err := kafkatest.Ranges(ctx, t.client, t.name)
	for ; err != nil; ranges, err = kafkatest.Ranges(ctx, t.client, t.name) {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, r := range ranges {
		if r.End > 0 && !t.created {
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
	if t.created {
		err = errors.Join(err, kafkatest.Delete(ctx, t.client, t.name))
	}
	return err
}

// committed reports whether a group has committed the end offset of every partition.
func (t *topic) committed(ctx context.Context, group string) (bool, error) {
	ranges, err := kafkatest.Ranges(ctx, t.client, t.name)
	if err != nil {
		return false, err
	}
	committed, err := kafkatest.Committed(ctx, t.client, group, ranges)
	for _, r := range ranges {
		if r.End > 0 && committed[r.Partition] < r.End {
			return false, err
		}
	}
	return true, err
}

// scan reads the records up to the current end, each partition in the order of its offsets.
func (t *topic) scan(ctx context.Context) ([]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	ranges, err := kafkatest.Ranges(ctx, t.client, t.name)
	if err != nil {
		return nil, err
	}
	var all []*kgo.Record
	if err := kafkatest.Each(ctx, t.brokers, ranges, func(r *kgo.Record) { all = append(all, r) }); err != nil {
		return nil, fmt.Errorf("reading topic %q: %w", t.name, err)
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
		again = append(again, records[i])
	}
	return len(again), t.produce(ctx, again)
}

// produce produces copies of records to their partitions.
func (t *topic) produce(ctx context.Context, records []*kgo.Record) error {
	var again []*kgo.Record
	for _, r := range records {
		again = append(again, &kgo.Record{
			Topic: t.name, Partition: r.Partition, Key: r.Key, Value: r.Value,
			Headers: r.Headers,
		})
	}
	return t.client.ProduceSync(ctx, again...).FirstErr()
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
