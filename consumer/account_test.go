package consumer_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// The group's offset is behind the database's progress. The repeated events are counted, as duplicates while the inbox
// has their ids and as applied once it has not.
func TestGroupBehindDatabase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ids                            bool // the inbox still has the ids
		dropped, applied, behind, gone int
	}{
		"dropped":          {true, 15, 0, 1, 0},
		"the ids are gone": {false, 0, 15, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, records(20, 0)...)
			var dropped, applied atomic.Int64
			logBuf := &logs{}
			cfg := config(topic)
			cfg.Batch, cfg.BatchWait = 4, -1 // the progress ends within a batch
			cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
			cfg.Observer.Repeated = func(r consumer.RepeatedInfo) {
				dropped.Add(int64(r.Dropped))
				applied.Add(int64(r.Applied))
			}
			h := progressHandler{newHandler(), 15}
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
				t.Errorf("%d dropped and %d applied below the progress, want %d and %d", d, a, c.dropped, c.applied)
			}
			if n := logBuf.count("reading that again"); n != c.behind {
				t.Errorf("%d log lines that the group is behind, want %d", n, c.behind)
			}
			if n := logBuf.count("its id is not there"); n != c.gone {
				t.Errorf("%d log lines that ids are gone, want %d", n, c.gone)
			}
		})
	}
}

// A member that reads committed events again commits no lower offset, unless one of them has no effect: then the
// database was restored.
func TestRepeatsDoNotMoveTheOffsetBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcome inbox.Outcome
		lowest  int64
	}{
		"repeats":  {inbox.Duplicate, 11}, // offset 10 is the first that was not committed
		"restored": {inbox.Applied, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, records(10, 0)...)
			cfg := config(topic)
			cfg.Batch, cfg.BatchWait, cfg.CommitEvery = 2, -1, -1
			first := newHandler()
			m := start(t, first, topic, cfg)
			first.await(t, 10)
			m.stop(t)

			kafkatest.Produce(t, topic, records(2, 0)...)
			committed := make(chan int64, 20)
			cfg.Observer.Committed = func(i consumer.CommittedInfo) { committed <- i.Offset }
			h := progressHandler{newHandler(), 3}
			h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
				out := make([]inbox.Outcome, len(events))
				for i, e := range events {
					if out[i] = c.outcome; e.Position.Offset >= 10 {
						out[i] = inbox.Applied
					}
				}
				return out, nil
			}
			start(t, h, topic, cfg)
			offsetsOf(t, h.await(t, 9)[0], 3, 12)
			lowest := recv(t, "the first offset", committed)
			for next := lowest; next != 12; next = recv(t, "the last offset", committed) {
				lowest = min(lowest, next)
			}
			if lowest != c.lowest {
				t.Errorf("the lowest offset that was committed is %d, want %d", lowest, c.lowest)
			}
		})
	}
}

// A topic is deleted and created again. Kafka deleted the group's offsets with it, so only the database's progress
// shows that the log is another one.
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
			h := progressHandler{newHandler(), 11}
			start(t, h, topic, cfg)
			if policy == consumer.LostHalt {
				recv(t, "the halt", halted)
			} else {
				offsetsOf(t, h.await(t, 5)[0], 0, 5)
			}
			requireOneLoss(t, lost)
		})
	}
}

// While a partition begins, its last owner decides one more event: it has not noticed yet that it is none any more. No
// log was cut.
func TestProgressMayGrowMeanwhile(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(5, 0)...)
	cfg := config(topic)
	cfg.Observer.Lost = func(l consumer.LostRange) { t.Errorf("records are said to be lost: %+v", l) }
	asked := make(chan struct{})
	h := growing{progressHandler{newHandler(), 6}, sync.OnceFunc(func() {
		kafkatest.Produce(t, topic, records(1, 0)...)
		close(asked)
	})}
	start(t, h, topic, cfg)
	<-asked
	kafkatest.Produce(t, topic, records(2, 0)...)
	offsetsOf(t, h.await(t, 8)[0], 0, 8) // the progress does not say of which log it is
}

// growing is a handler whose progress has grown when it is asked for.
type growing struct {
	progressHandler
	grow func()
}

func (g growing) Progress(ctx context.Context, topic string, partition int32) (inbox.Progress, error) {
	g.grow()
	return g.progressHandler.Progress(ctx, topic, partition)
}

// A group with an offset in the new log goes on there and does not halt again.
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
	cfg.Observer.Repeated = func(r consumer.RepeatedInfo) { repeated.Add(int64(r.Dropped + r.Applied)) }
	h := progressHandler{newHandler(), 11}
	start(t, h, topic, cfg)
	offsetsOf(t, h.await(t, 2)[0], 3, 5)
	requireOneLoss(t, lost)
	if n := repeated.Load(); n != 0 {
		t.Errorf("%d events of the new log are counted as repeated", n)
	}
}

// requireOneLoss checks that Lost was called once, for a log that ends before offset 11.
func requireOneLoss(t *testing.T, lost <-chan consumer.LostRange) {
	t.Helper()
	if n := len(lost); n != 1 {
		t.Fatalf("%d calls of Lost, want 1", n)
	}
	if l := <-lost; l.From != 11 || l.To != 11 {
		t.Errorf("%+v", l)
	}
}
