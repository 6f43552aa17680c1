package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// resumable is a handler that an operator can resume, and that remembers for 14 days.
type resumable struct {
	*handler
	go_      atomic.Bool
	assigned atomic.Int64
}

func (r *resumable) Assigned(string, int32) { r.assigned.Add(1) }

func (r *resumable) Resumed(context.Context, string, int32) (bool, error) { return r.go_.Load(), nil }

func (r *resumable) Window() time.Duration { return 14 * 24 * time.Hour }

// logged wraps a handler as the docs of [inbox.Handler] say.
type logged struct{ inbox.Handler }

func (l logged) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	return l.Handler.Handle(ctx, events)
}

// A halted partition goes on where it stopped when an operator says so, without a restart, whatever is wrapped around
// its handler.
func TestHaltedPartitionIsResumed(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	kafkatest.Produce(t, topic, records(20, 0, 1)...)
	h := &resumable{handler: newHandler()}
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		out := applied(len(events))
		for i, e := range events {
			if e.Position.Partition == 0 && e.Position.Offset == 7 && !h.go_.Load() {
				return out[:i], &inbox.HaltError{
					Event: event.Event{ID: e.ID, Position: e.Position},
					Err:   errors.New("broken"),
				}
			}
		}
		return out, nil
	}
	halted, resumed := make(chan consumer.Halt, 10), make(chan consumer.Partition, 10)
	cfg := config(topic)
	cfg.ResumeEvery = time.Millisecond
	cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
	cfg.Observer.Resumed = func(p consumer.Partition) { resumed <- p }
	m := start(t, logged{h}, topic, cfg)
	if x := recv(t, "the halt", halted); x.ID != 0 || x.Offset != 7 || x.EventID == uuid.Nil {
		t.Errorf("%+v", x)
	}
	h.await(t, 27)
	h.go_.Store(true)
	if p := recv(t, "the resumption", resumed); p.ID != 0 {
		t.Errorf("%+v", p)
	}
	seen := h.await(t, 40)
	offsetsOf(t, seen[0], 0, 20)
	offsetsOf(t, seen[1], 0, 20)
	if n := len(m.Status().Halted()); n != 0 {
		t.Errorf("status tells of %d halts", n)
	}
	if n := h.assigned.Load(); n != 2 {
		t.Errorf("told of %d assignments", n)
	}
}

// TestP9_7_WindowAgainstRetention: a topic that keeps records for longer than ids are remembered is said, with the
// setting.
func TestP9_7_WindowAgainstRetention(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, c := range map[string]struct {
		config map[string]string
		said   int
	}{
		"default":  {nil, 0},
		"longer":   {map[string]string{"retention.ms": "2592000000"}, 1},
		"for ever": {map[string]string{"retention.ms": "-1"}, 1},
		"compact":  {map[string]string{"cleanup.policy": "compact"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1, c.config)
			h, said := &resumable{handler: newHandler()}, &logs{}
			cfg := config(topic)
			cfg.Logger = slog.New(slog.NewTextHandler(said, nil))
			m := start(t, h, topic, cfg)
			kafkatest.Produce(t, topic, records(1, 0)...)
			h.await(t, 1)
			m.stop(t)
			if n := said.count("raise inbox.Config.Window"); n != c.said || said.count("DescribeConfigs") != 0 {
				t.Errorf("said %d times, want %d:\n%s", n, c.said, said.b.String())
			}
		})
	}
}

// accounting is a handler whose database has decided everything below an offset.
type accounting struct {
	*handler
	next int64
}

func (a accounting) Progress(context.Context, string, int32) (int64, bool, error) {
	return a.next, true, nil
}

// Kafka forgets the offsets of a group that was away for long. The database knows them.
func TestStartLatestOfAGroupThatIsNotNew(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(21, 0)...)
	cfg := config(topic)
	cfg.Start = consumer.StartLatest
	h := accounting{newHandler(), 11}
	start(t, h, topic, cfg)
	offsetsOf(t, h.await(t, 10)[0], 11, 21)
}

// The log ends before the place that the database knows: it is another one, and all of it is new.
func TestStartLatestOfATopicThatWasMadeAgain(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(5, 0)...)
	lost := make(chan consumer.LostRange, 10)
	cfg := config(topic)
	cfg.Start = consumer.StartLatest
	cfg.Observer.Lost = func(l consumer.LostRange) { lost <- l }
	h := accounting{newHandler(), 11}
	start(t, h, topic, cfg)
	if l := recv(t, "the loss", lost); l.From != 11 {
		t.Errorf("%+v", l)
	}
	offsetsOf(t, h.await(t, 5)[0], 0, 5)
}

// The handler's database is another one than before: nothing halts, and the partition begins where that database is.
func TestMovedDatabaseIsFollowed(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(10, 0)...)
	var generations, moved, halts atomic.Int32
	h := accounting{newHandler(), 3}
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		if events[0].Position.Offset >= 5 && moved.Add(1) == 1 {
			return make([]inbox.Outcome, len(events)), &inbox.MovedError{From: "a", To: "b"}
		}
		return applied(len(events)), nil
	}
	cfg := config(topic)
	cfg.Batch, cfg.BatchWait, cfg.CommitEvery = 5, -1, -1
	cfg.Observer.Assigned = func(int32, []consumer.Partition) { generations.Add(1) }
	cfg.Observer.Halted = func(h consumer.Halt) { halts.Add(1) }
	start(t, h, topic, cfg)
	await(t, "the end", func() bool { return halts.Load() > 0 || len(h.byPartition()[0]) == 12 })
	if halts.Load() > 0 {
		t.Fatal("the partition halts")
	}
	seen := h.byPartition()[0] // 0 to 4, and from 3 to the end
	offsetsOf(t, seen[:5], 0, 5)
	offsetsOf(t, seen[5:], 3, 10)
	if n := generations.Load(); n != 2 {
		t.Errorf("%d generations", n)
	}
}

type leaving struct {
	*handler
	revoked chan int
}

func (l leaving) Revoked(context.Context, string, int32) { l.revoked <- len(l.byPartition()[0]) }

// The handler is told behind its last batch, so that its account is complete when the next member reads it.
func TestHandlerLearnsOfRevocation(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(5, 0)...)
	h := leaving{newHandler(), make(chan int, 10)}
	m := start(t, h, topic, config(topic))
	h.await(t, 5)
	m.stop(t)
	if n := recv(t, "the word", h.revoked); n != 5 {
		t.Errorf("told behind %d events, want 5", n)
	}
}
