package kafkatest

import (
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestDenyAndAllow(t *testing.T) {
	t.Parallel()
	topic, other := Topic(t, 1), Topic(t, 1)
	write := func(topic string) error {
		client, err := kgo.NewClient(kgo.SeedBrokers(Brokers(t)...), kgo.DisableIdempotentWrite())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr()
	}
	allow := Deny(t, Brokers(t), topic)
	if err := write(topic); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("error of a denied topic: %v", err)
	}
	if err := write(other); err != nil {
		t.Errorf("another topic is denied too: %v", err)
	}
	allow()
	if err := write(topic); err != nil {
		t.Errorf("still denied after allow: %v", err)
	}
	if n := len(ReadAll(t, topic)); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}
