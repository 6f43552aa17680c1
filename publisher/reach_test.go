package publisher

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// TestReach: a publisher that has sent nothing yet knows whether a broker answers.
func TestReach(t *testing.T) {
	t.Parallel()
	k := newKafka(t, kafkatest.Brokers(t), Config{})
	for range 2 {
		if err := k.Reach(t.Context()); err != nil {
			t.Error(err)
		}
	}
	refused := errors.New("nobody there")
	k = newKafka(t, kafkatest.Brokers(t), Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, refused
	}})
	if err := k.Reach(t.Context()); err == nil {
		t.Error("a broker that nobody can dial is reached")
	}
}
