package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// limit is so long that no test fails on a slow machine.
const limit = 2 * time.Minute

// Topic creates a topic with a unique name in the shared broker and waits until every partition has a leader. The end
// of the test deletes it.
func Topic(t testing.TB, partitions int, configs ...map[string]string) string {
	t.Helper()
	return TopicAt(t, Brokers(t), partitions, configs...)
}

// TopicAt is Topic for other brokers, such as a Cluster's.
func TopicAt(t testing.TB, brokers []string, partitions int, configs ...map[string]string) string {
	t.Helper()
	name := uniqueName(t)
	CreateTopic(t, brokers, name, partitions, configs...)
	t.Cleanup(func() { deleteTopic(brokers, name) })
	return name
}

// CreateTopic creates a topic and waits until every partition has a leader.
func CreateTopic(t testing.TB, brokers []string, name string, partitions int, configs ...map[string]string) {
	t.Helper()
	client := newClient(t, brokers)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	// A starved broker creates a topic and then says that it took too long.
	err := Create(ctx, client, name, partitions, configs...)
	if err != nil && !errors.Is(err, kerr.RequestTimedOut) {
		t.Fatalf("kafkatest: create topic %s: %v", name, err)
	}
	awaitLeaders(t, ctx, client, name, partitions)
}

// Create asks the broker for a topic. Its partitions may have no leader yet.
func Create(ctx context.Context, client *kgo.Client, name string, partitions int, configs ...map[string]string) error {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(partitions), -1
	for _, set := range configs {
		for k, v := range set {
			c := kmsg.NewCreateTopicsRequestTopicConfig()
			c.Name, c.Value = k, &v
			topic.Configs = append(topic.Configs, c)
		}
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 30_000
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	return err
}

// Delete asks the broker to delete a topic.
func Delete(ctx context.Context, client *kgo.Client, name string) error {
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = &name
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames, req.Topics, req.TimeoutMillis = []string{name}, append(req.Topics, topic), 30_000
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	return err
}

// Grow raises the number of partitions of a topic and waits until each has a leader.
func Grow(t testing.TB, brokers []string, name string, partitions int) {
	t.Helper()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = name, int32(partitions)
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.Topics = append(req.Topics, topic)
	req.TimeoutMillis = 30_000
	resp, err := req.RequestWith(t.Context(), newClient(t, brokers))
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil && !errors.Is(err, kerr.RequestTimedOut) {
		t.Fatalf("kafkatest: grow topic %s: %v", name, err)
	}
	AwaitLeaders(t, brokers, name, partitions)
}

// Remake deletes a topic and creates it again, with another id.
func Remake(t testing.TB, brokers []string, name string, partitions int) {
	t.Helper()
	client := newClient(t, brokers)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := Delete(ctx, client, name); err != nil {
		t.Fatalf("kafkatest: delete topic %s: %v", name, err)
	}
	awaitGone(t, ctx, client, name)
	CreateTopic(t, brokers, name, partitions)
}

// awaitGone waits until the broker has applied the deletion of a topic. Until then it writes to the old log.
func awaitGone(t testing.TB, ctx context.Context, client *kgo.Client, name string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := countLeaders(ctx, client, name)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("kafkatest: topic %s is still there: %v", name, err)
		}
	}
}

// SetQuota limits the clients with an id, such as to a consumer_byte_rate. The end of the test ends it.
func SetQuota(t testing.TB, clientID, name string, value float64) {
	t.Helper()
	client := newClient(t, Brokers(t))
	set := func(remove bool) error {
		entry := kmsg.NewAlterClientQuotasRequestEntry()
		entity := kmsg.NewAlterClientQuotasRequestEntryEntity()
		entity.Type, entity.Name = "client-id", &clientID
		entry.Entity = append(entry.Entity, entity)
		op := kmsg.NewAlterClientQuotasRequestEntryOp()
		op.Key, op.Value, op.Remove = name, value, remove
		entry.Ops = append(entry.Ops, op)
		req := kmsg.NewPtrAlterClientQuotasRequest()
		req.Entries = append(req.Entries, entry)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		resp, err := req.RequestWith(ctx, client)
		if err == nil && len(resp.Entries) == 1 {
			err = kerr.ErrorForCode(resp.Entries[0].ErrorCode)
		}
		return err
	}
	if err := set(false); err != nil {
		t.Fatalf("kafkatest: quota of %s: %v", clientID, err)
	}
	t.Cleanup(func() { _ = set(true) })
}

// countLeaders returns the number of partitions of a topic, and an error unless all have a leader.
func countLeaders(ctx context.Context, client *kgo.Client, name string) (int, error) {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 {
		return 0, errors.New("the topic is not in the metadata")
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return 0, err
	}
	for _, p := range resp.Topics[0].Partitions {
		if p.Leader < 0 || p.ErrorCode != 0 {
			return 0, fmt.Errorf("partition %d: leader %d, %v", p.Partition, p.Leader, kerr.ErrorForCode(p.ErrorCode))
		}
	}
	return len(resp.Topics[0].Partitions), nil
}

// deleteTopic keeps the shared broker small. It ignores errors: the broker may be down.
func deleteTopic(brokers []string, name string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RequestRetries(0))
	if err != nil {
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = Delete(ctx, client, name)
}

func newClient(t testing.TB, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(brokers...))...)
	if err != nil {
		t.Fatalf("kafkatest: client: %v", err)
	}
	t.Cleanup(client.Close)
	return client
}

func uniqueName(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') || (r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, t.Name())
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails since Go 1.24
	return name[:min(len(name), 80)] + "-" + hex.EncodeToString(random[:])
}

// AwaitLeaders waits until every partition of a topic has a leader, as after the loss of a broker.
func AwaitLeaders(t testing.TB, brokers []string, name string, partitions int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	awaitLeaders(t, ctx, newClient(t, brokers), name, partitions)
}

func awaitLeaders(t testing.TB, ctx context.Context, client *kgo.Client, name string, partitions int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := countLeaders(ctx, client, name)
		if err == nil && n == partitions {
			// Metadata names a leader a moment before it leads.
			if _, err = listOffsets(ctx, client, name, n, -1); err == nil {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("kafkatest: topic %s has leaders for %d of %d partitions: %v", name, n, partitions, err)
		}
	}
}
