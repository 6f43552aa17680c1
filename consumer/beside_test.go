package consumer_test

import (
	"context"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// beside is a handler whose program has another consumer of the topic.
type beside struct{ keeping }

func (b beside) Progress(ctx context.Context, topic string, partition int32) (inbox.Progress, error) {
	p, err := b.keeping.Progress(ctx, topic, partition)
	if p.Next < 0 {
		p.Beside = "ledger"
	}
	return p, err
}

// TestNewNameBesideAnother: under a name that is new beside another consumer of the program nothing begins, unless a
// Start is chosen; what the group or the database knows goes on.
func TestNewNameBesideAnother(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(3, 0)...)
	h := beside{newKeeping()}
	halted := make(chan consumer.Halt, 1)
	cfg := config(topic)
	cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
	m := start(t, h, topic, cfg)
	await(t, "the refusal", func() bool { return len(halted) > 0 || len(h.byPartition()) > 0 })
	if n := len(h.byPartition()); n > 0 {
		t.Fatal("events are handled under a new name")
	}
	if why := recv(t, "the refusal", halted).Err.Error(); !strings.Contains(why, `which consumer "ledger" of the same `+
		"program reads") || !strings.Contains(why, "is a typo") || !strings.Contains(why, "consumer.Config.Start") {
		t.Error(why)
	}
	m.stop(t)
	if n := len(h.rows.of); n != 0 {
		t.Fatalf("%d partitions were begun", n)
	}
	cfg.Start = consumer.StartEarliest
	m = start(t, h, topic, cfg)
	offsetsOf(t, h.await(t, 3)[0], 0, 3)
	m.stop(t)
	cfg.Start = 0
	kafkatest.Produce(t, topic, records(2, 0)...)
	start(t, h, topic, cfg)
	h.await(t, 5)
}
