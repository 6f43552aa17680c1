package doctor

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/inbox/operator"
)

// silent is a Kafka that does not answer.
type silent struct{}

func (silent) Client(time.Duration) (*kafka.Client, func()) {
	return &kafka.Client{Addr: kafka.TCP("away:9092"), Transport: silent{}}, func() {}
}
func (silent) Warning() string { return "" }
func (silent) LookAt() string  { return "" }

func (silent) RoundTrip(context.Context, net.Addr, kafka.Request) (kafka.Response, error) {
	return nil, context.DeadlineExceeded
}

// TestSilentBrokerIsNoLock: who reads of a broker that does not answer is not sent to look for a lock of the database.
func TestSilentBrokerIsNoLock(t *testing.T) {
	t.Parallel()
	f := findings{}
	f.progress(t.Context(), silent{}, []operator.ConsumerDiagnosis{{
		ConsumerState: operator.ConsumerState{
			Consumer: "ledger", Partitions: []operator.PartitionState{{Topic: "payments"}},
		},
	}})
	if len(f.list) == 0 {
		t.Fatal("a broker that does not answer is not said")
	}
	for _, one := range f.list {
		if one.Next == seeLocks || !strings.Contains(one.Found, context.DeadlineExceeded.Error()) {
			t.Errorf("it is said as %+v", one)
		}
	}
}
