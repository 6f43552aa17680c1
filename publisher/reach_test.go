package publisher

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/outcome"
)

// TestReach checks Reach on a publisher that has sent nothing yet.
func TestReach(t *testing.T) {
	t.Parallel()
	k := newKafka(t, kafkatest.Brokers(t), Config{})
	for range 2 {
		if err := k.Reach(t.Context()); err != nil {
			t.Error(err)
		}
	}
	var clusters []string
	foreign := &outcome.Refusal{Topic: true, Err: errors.New("another cluster")}
	answers := []error{nil, errors.New("the database is away"), foreign}
	k = newKafka(t, kafkatest.Brokers(t), Config{
		Pin: func(_ context.Context, cluster, topic string, partitions int) (int, error) {
			if topic != "" || partitions != 0 {
				t.Errorf("Pin of topic %q, %d partitions", topic, partitions)
			}
			clusters = append(clusters, cluster)
			return 0, answers[len(clusters)-1]
		},
	})
	for _, answer := range answers {
		if err := k.Reach(t.Context()); isRefusal(err) != (answer == foreign) || err != nil && !isRefusal(err) {
			t.Errorf("the pin says %v, and Reach %v", answer, err)
		}
	}
	if len(clusters) != 3 || clusters[0] == "" {
		t.Errorf("the pin was asked for the clusters %q", clusters)
	}
	refused := errors.New("connection refused")
	k = newKafka(t, kafkatest.Brokers(t), Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, refused
	}})
	if err := k.Reach(t.Context()); err == nil {
		t.Error("Reach returns nil although no broker can be dialed")
	}
}
