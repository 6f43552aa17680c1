package consumer_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// The group is behind the database: what comes again is counted, and told apart by whether the database still has the
// ids.
func TestGroupBehindDatabase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ids                          bool // the inbox has them
		dropped, applied, said, gone int
	}{
		"dropped":          {true, 15, 0, 1, 0},
		"the ids are gone": {false, 0, 15, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, records(20, 0)...)
			var dropped, applied atomic.Int64
			said := &logs{}
			cfg := config(topic)
			cfg.Batch, cfg.BatchWait = 4, -1 // the account ends within a batch
			cfg.Logger = slog.New(slog.NewTextHandler(said, nil))
			cfg.Observer.Repeated = func(_ consumer.Partition, d, a int) {
				dropped.Add(int64(d))
				applied.Add(int64(a))
			}
			h := accounting{newHandler(), 15}
			h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
				out := make([]inbox.Outcome, len(events))
				for i, e := range events {
					if out[i] = inbox.Applied; c.ids && e.Position.Offset < 15 {
						out[i] = inbox.Duplicate
					}
				}
				return out, nil
			}
			m := start(t, h, topic, cfg)
			offsetsOf(t, h.await(t, 20)[0], 0, 20)
			m.stop(t)
			if d, a := int(dropped.Load()), int(applied.Load()); d != c.dropped || a != c.applied {
				t.Errorf("%d dropped and %d applied below the account, want %d and %d", d, a, c.dropped, c.applied)
			}
			if n := said.count("reading that again"); n != c.said {
				t.Errorf("said %d times that the group is behind, want %d", n, c.said)
			}
			if n := said.count("its id is not there"); n != c.gone {
				t.Errorf("said %d times that ids are gone, want %d", n, c.gone)
			}
		})
	}
}

// Kafka deletes a group's offsets with its topic: the new log begins at zero, and only the database knows that there
// was another.
func TestLogEndsBeforeProgress(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]consumer.LostPolicy{
		"goes on": consumer.LostContinue,
		"halts":   consumer.LostHalt,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, records(5, 0)...)
			lost, halted := make(chan consumer.LostRange, 10), make(chan consumer.Halt, 10)
			cfg := config(topic)
			cfg.OnLost = policy
			cfg.Observer.Lost = func(l consumer.LostRange) { lost <- l }
			cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
			h := accounting{newHandler(), 11}
			start(t, h, topic, cfg)
			if policy == consumer.LostHalt {
				recv(t, "the halt", halted)
			} else {
				offsetsOf(t, h.await(t, 5)[0], 0, 5)
			}
			oneLoss(t, lost)
		})
	}
}

// A group that has begun in the new log, or was set to a place in it, goes on there, and does not halt a second time.
func TestGroupOffsetInNewLog(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(3, 0)...)
	cfg := config(topic)
	first := newHandler()
	m := start(t, first, topic, cfg)
	first.await(t, 3)
	m.stop(t)
	kafkatest.Produce(t, topic, records(2, 0)...)
	lost := make(chan consumer.LostRange, 10)
	var repeated atomic.Int64
	cfg.OnLost = consumer.LostHalt
	cfg.Observer.Lost = func(l consumer.LostRange) { lost <- l }
	cfg.Observer.Repeated = func(_ consumer.Partition, d, a int) { repeated.Add(int64(d + a)) }
	h := accounting{newHandler(), 11}
	start(t, h, topic, cfg)
	offsetsOf(t, h.await(t, 2)[0], 3, 5)
	oneLoss(t, lost)
	if n := repeated.Load(); n != 0 {
		t.Errorf("%d events of the new log count as repeated", n)
	}
}

// oneLoss checks that a log was told to end before offset 11, once.
func oneLoss(t *testing.T, lost <-chan consumer.LostRange) {
	t.Helper()
	if n := len(lost); n != 1 {
		t.Fatalf("told %d times that the log is another one, want 1", n)
	}
	if l := <-lost; l.From != 11 || l.To != 11 {
		t.Errorf("%+v", l)
	}
}
