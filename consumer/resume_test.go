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

// resumable is a handler with a window of 14 days whose halts end once resume is set.
type resumable struct {
	*handler
	resume   atomic.Bool
	assigned atomic.Int64
}

func (r *resumable) Assigned(string, int32) { r.assigned.Add(1) }

func (r *resumable) Resumed(context.Context, string, int32) (bool, error) {
	return r.resume.Load(), nil
}

func (r *resumable) Window() time.Duration { return 14 * 24 * time.Hour }

// wrappedHandler wraps a handler as the documentation of [inbox.Handler] recommends.
type wrappedHandler struct{ inbox.Handler }

func (l wrappedHandler) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	return l.Handler.Handle(ctx, events)
}

// An operator resumes a halted partition. It goes on where it stopped, without a restart, also with a wrapped handler.
func TestHaltedPartitionIsResumed(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	kafkatest.Produce(t, topic, records(20, 0, 1)...)
	h := &resumable{handler: newHandler()}
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		out := applied(len(events))
		for i, e := range events {
			if e.Position.Partition == 0 && e.Position.Offset == 7 && !h.resume.Load() {
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
	m := start(t, wrappedHandler{h}, topic, cfg)
	if x := recv(t, "the halt", halted); x.ID != 0 || x.Offset != 7 || x.EventID == uuid.Nil {
		t.Errorf("%+v", x)
	}
	h.await(t, 27)
	h.resume.Store(true)
	if p := recv(t, "the resumption", resumed); p.ID != 0 {
		t.Errorf("%+v", p)
	}
	seen := h.await(t, 40)
	offsetsOf(t, seen[0], 0, 20)
	offsetsOf(t, seen[1], 0, 20)
	if n := len(m.Status().Halted()); n != 0 {
		t.Errorf("%d halts in Status, want 0", n)
	}
	if n := h.assigned.Load(); n != 2 {
		t.Errorf("%d calls of Assigned, want 2", n)
	}
}

// TestP9_7_WindowAgainstRetention: a topic that keeps records for longer than the window is logged, with the setting to
// raise.
func TestP9_7_WindowAgainstRetention(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, c := range map[string]struct {
		config map[string]string
		lines  int
	}{
		"default":  {nil, 0},
		"longer":   {map[string]string{"retention.ms": "2592000000"}, 1},
		"for ever": {map[string]string{"retention.ms": "-1"}, 1},
		"compact":  {map[string]string{"cleanup.policy": "compact"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1, c.config)
			h, logBuf := &resumable{handler: newHandler()}, &logs{}
			cfg := config(topic)
			cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
			m := start(t, h, topic, cfg)
			kafkatest.Produce(t, topic, records(1, 0)...)
			h.await(t, 1)
			m.stop(t)
			if n := logBuf.count("raise inbox.Config.Window"); n != c.lines || logBuf.count("DescribeConfigs") != 0 {
				t.Errorf("%d log lines, want %d:\n%s", n, c.lines, logBuf.b.String())
			}
		})
	}
}

// progressHandler is a handler whose progress is the offset next.
type progressHandler struct {
	*handler
	next int64
}

func (a progressHandler) Progress(context.Context, string, int32) (inbox.Progress, error) {
	return inbox.Progress{Kept: true, Next: a.next}, nil
}

// Kafka deleted the offsets of a group that was away for long. The consumer begins at the database's progress.
func TestStartLatestOfAGroupThatIsNotNew(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(21, 0)...)
	cfg := config(topic)
	cfg.Start = consumer.StartLatest
	h := progressHandler{newHandler(), 11}
	start(t, h, topic, cfg)
	offsetsOf(t, h.await(t, 10)[0], 11, 21)
}

// The log ends before the database's progress: the topic was created again, and all its events are new.
func TestStartLatestOfATopicThatWasMadeAgain(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(5, 0)...)
	lost := make(chan consumer.LostRange, 10)
	cfg := config(topic)
	cfg.Start = consumer.StartLatest
	cfg.Observer.Lost = func(l consumer.LostRange) { lost <- l }
	h := progressHandler{newHandler(), 11}
	start(t, h, topic, cfg)
	if l := recv(t, "the loss", lost); l.From != 11 {
		t.Errorf("%+v", l)
	}
	offsetsOf(t, h.await(t, 5)[0], 0, 5)
}

// The handler's database was replaced by another one. No partition halts; the partition begins at the new database's
// progress.
func TestChangedDatabaseIsFollowed(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(10, 0)...)
	var generations, moved, halts atomic.Int32
	h := progressHandler{newHandler(), 3}
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		if events[0].Position.Offset >= 5 && moved.Add(1) == 1 {
			return make([]inbox.Outcome, len(events)), &inbox.DatabaseChangedError{From: "a", To: "b"}
		}
		return applied(len(events)), nil
	}
	cfg := config(topic)
	cfg.Batch, cfg.BatchWait, cfg.CommitEvery = 5, -1, -1
	cfg.Observer.Assigned = func(consumer.AssignedInfo) { generations.Add(1) }
	cfg.Observer.Halted = func(h consumer.Halt) { halts.Add(1) }
	start(t, h, topic, cfg)
	await(t, "the end", func() bool { return halts.Load() > 0 || len(h.byPartition()[0]) == 12 })
	if halts.Load() > 0 {
		t.Fatal("the partition halted")
	}
	seen := h.byPartition()[0] // 0 to 4, then 3 to the end
	offsetsOf(t, seen[:5], 0, 5)
	offsetsOf(t, seen[5:], 3, 10)
	// Assigned is called when the partition runs already.
	await(t, "the second generation", func() bool { return generations.Load() >= 2 })
	if n := generations.Load(); n != 2 {
		t.Errorf("%d generations", n)
	}
}

type revokedHandler struct {
	*handler
	revoked chan int
}

func (l revokedHandler) Revoked(context.Context, string, int32) { l.revoked <- len(l.byPartition()[0]) }

// Revoked is called after the last batch, so that the progress is complete when the next member reads it.
func TestHandlerLearnsOfRevocation(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(5, 0)...)
	h := revokedHandler{newHandler(), make(chan int, 10)}
	m := start(t, h, topic, config(topic))
	h.await(t, 5)
	m.stop(t)
	if n := recv(t, "the call of Revoked", h.revoked); n != 5 {
		t.Errorf("Revoked was called after %d events, want 5", n)
	}
}

// restored is a handler whose database is restored, to progress 3, when the test says so.
type restored struct {
	progressHandler
	is atomic.Bool
}

func (r *restored) Resumed(context.Context, string, int32) (bool, error) {
	if r.is.CompareAndSwap(true, false) {
		return false, &inbox.DatabaseChangedError{From: "a", To: "b"}
	}
	return false, nil
}

// The handler's database was restored under a partition to which no event comes, since there is none, or since it is
// halted. It begins at the database's progress all the same.
func TestQuietPartitionFollowsItsDatabase(t *testing.T) {
	t.Parallel()
	for name, halting := range map[string]bool{"at its end": false, "halted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, records(10, 0)...)
			h, halts := &restored{progressHandler: progressHandler{newHandler(), 3}}, make(chan struct{}, 10)
			var fails atomic.Bool
			fails.Store(halting)
			h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
				if i := len(events) - 1; events[i].Position.Offset == 9 && fails.Swap(false) {
					return applied(i), &inbox.HaltError{Event: events[i], Err: errors.New("broken")}
				}
				return applied(len(events)), nil
			}
			cfg := config(topic)
			cfg.CommitEvery, cfg.ResumeEvery = -1, time.Millisecond
			cfg.Observer.Halted = func(consumer.Halt) { halts <- struct{}{} }
			start(t, h, topic, cfg)
			first := 10
			if halting {
				recv(t, "the halt", halts)
				first = 9
			}
			offsetsOf(t, h.await(t, first)[0], 0, int64(first))
			h.is.Store(true)
			offsetsOf(t, h.await(t, first+7)[0][first:], 3, 10)
		})
	}
}
