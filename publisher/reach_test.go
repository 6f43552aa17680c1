package publisher

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
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
	refused := errors.New("connection refused")
	k = newKafka(t, kafkatest.Brokers(t), Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, refused
	}})
	if err := k.Reach(t.Context()); err == nil {
		t.Error("Reach returns nil although no broker can be dialed")
	}
}
