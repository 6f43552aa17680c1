package main

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topics creates topics.
type topics struct{ client *kgo.Client }

func newTopics(brokers []string) (*topics, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, err
	}
	return &topics{client}, nil
}

func (t *topics) close() { t.client.Close() }

// create creates a topic unless it exists.
func (t *topics) create(ctx context.Context, name string, partitions int32, config map[string]string) error {
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = name, partitions, 3
	settings := map[string]string{"min.insync.replicas": "2"}
	maps.Copy(settings, config)
	for key, value := range settings {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = key, &value
		one.Configs = append(one.Configs, c)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 20_000
	req.Topics = append(req.Topics, one)
	resp, err := req.RequestWith(ctx, t.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("creating topic %q: %w", name, err)
	}
	return nil
}

// grow adds partitions to a topic.
func (t *topics) grow(ctx context.Context, name string, partitions int32) error {
	one := kmsg.NewCreatePartitionsRequestTopic()
	one.Topic, one.Count = name, partitions
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis = 20_000
	req.Topics = append(req.Topics, one)
	resp, err := req.RequestWith(ctx, t.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("adding partitions to topic %q: %w", name, err)
	}
	return nil
}
