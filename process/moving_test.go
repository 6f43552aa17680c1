package process

import (
	"errors"
	"testing"
	"time"

	"github.com/effectonce/effectonce/consumer"
)

// TestMoving: a worker moves unless a partition is halted, or no record was processed for two minutes, or it has not
// been in its group for as long.
func TestMoving(t *testing.T) {
	t.Parallel()
	at := func(ago time.Duration) time.Time { return time.Now().Add(-ago) }
	name := consumer.Partition{Topic: "orders", ID: 3}
	for what, c := range map[string]struct {
		status consumer.Status
		want   string
	}{
		"not begun": {consumer.Status{}, ""},
		"joins":     {consumer.Status{OutSince: at(time.Second)}, ""},
		"a standby": {consumer.Status{Joined: true}, ""},
		"no topic": {
			consumer.Status{OutSince: at(130 * time.Second), Missing: []string{"oders"}},
			"not in the group for 2m10s: topics are missing: oders",
		},
		"no Kafka": {
			consumer.Status{OutSince: at(130 * time.Second), Down: true, LastError: "dial tcp"},
			"not in the group for 2m10s: Kafka cannot be used: dial tcp",
		},
		"no database": {
			consumer.Status{OutSince: at(130 * time.Second)},
			"not in the group for 2m10s: the log says what it waits for",
		},
		"nothing waits": {consumer.Status{Partitions: []consumer.PartitionStatus{{Partition: name}}}, ""},
		"busy":          {consumer.Status{StalledSince: at(time.Second)}, ""},
		"stalled": {consumer.Status{StalledSince: at(130 * time.Second), Partitions: []consumer.PartitionStatus{
			{Partition: name, Lag: 24, HandlingSince: at(140 * time.Second)},
			{Partition: consumer.Partition{Topic: "orders"}, Lag: -1},
		}}, "no record was processed for 2m10s although 24 records wait: the handler of orders-3 has been running " +
			"for 2m20s"},
		"stalled without a handler": {
			consumer.Status{StalledSince: at(130 * time.Second)},
			"no record was processed for 2m10s although 0 records wait: no handler runs",
		},
		"halted": {
			consumer.Status{StalledSince: at(130 * time.Second), Partitions: []consumer.PartitionStatus{
				{Partition: name, Halted: &consumer.Halt{Partition: name, Offset: 7, Err: errors.New("broken")}},
			}},
			"halted partitions: 1, the first is orders/3 at offset 7, event 00000000-0000-0000-0000-000000000000",
		},
	} {
		got := ""
		if err := moving(c.status); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
