package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

func TestEveryRecordOnceInOrder(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 3)
	kafkatest.Produce(t, topic, records(1200, 0, 1, 2)...)
	h := newHandler()
	cfg := config(topic)
	cfg.Batch = 100
	m := start(t, h, topic, cfg)
	seen := h.await(t, 3600)
	await(t, "lag zero", func() bool {
		lag := int64(0)
		for _, p := range m.Status().Partitions {
			lag += p.Lag
		}
		return len(m.Status().Partitions) == 3 && lag == 0
	})
	m.stop(t)
	for p := range int32(3) {
		offsetsOf(t, seen[p], 0, 1200)
		e := seen[p][7]
		if e.Key != "7" || string(e.Payload) != "7" || e.Type != "Happened" || e.Source != "test" || e.Topic != topic ||
			e.ID.Version() != 7 {
			t.Errorf("event %+v", e)
		}
	}
	full := false
	for _, n := range h.batches {
		if full = full || n == 100; n > 100 {
			t.Errorf("a batch of %d", n)
		}
	}
	if !full {
		t.Errorf("no full batch among %v", h.batches)
	}
	if got := committed(t, kafkatest.Brokers(t), topic, topic, 3); got[0] != 1200 || got[1] != 1200 || got[2] != 1200 {
		t.Errorf("committed %v", got)
	}
}

// P9.2: an offset is committed after its transaction, so not while a handler runs.
func TestP9_2_OffsetIsCommittedLast(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(3, 0)...)
	during := make(chan int64, 1)
	h := newHandler()
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		during <- committed(t, kafkatest.Brokers(t), topic, topic, 1)[0]
		return applied(len(events)), nil
	}
	cfg := config(topic)
	cfg.Batch, cfg.BatchWait, cfg.CommitEvery = 3, time.Second, -1
	m := start(t, h, topic, cfg)
	if at := recv(t, "what is committed during a batch", during); at > 0 {
		t.Errorf("the offset is committed up to %d before the handler has decided anything", at)
	}
	m.stop(t)
	if at := committed(t, kafkatest.Brokers(t), topic, topic, 1)[0]; at != 3 {
		t.Errorf("committed %d after the batch, want 3", at)
	}
}

// I7: only the decided events at the head of a batch are committed. A halt concerns its partition alone.
func TestOnlyTheDecidedHeadIsCommitted(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 5)
	kafkatest.Produce(t, topic, records(20, 0, 1, 2, 3, 4)...)
	h := newHandler()
	broken := errors.New("the ledger is closed")
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		out := applied(len(events))
		for i, e := range events {
			if e.Position.Offset != 7 {
				continue
			}
			out[i] = inbox.Undecided // the outcomes after it must not count
			switch e.Position.Partition {
			case 0:
				return out, &inbox.HaltError{
					Event: event.Event{ID: e.ID, Position: e.Position}, Attempts: 10,
					Err: broken,
				}
			case 1:
				return out[:i], errors.New("no class")
			case 2:
				return out, nil
			case 3:
				panic("hunter2")
			}
			out[i] = inbox.Skipped
		}
		return out, nil
	}
	halted := make(chan consumer.Halt, 10)
	logBuf := &logs{}
	cfg := config(topic)
	cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
	cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
	cfg.Batch, cfg.BatchWait = 5, -1
	m := start(t, h, topic, cfg)
	halts := map[int32]consumer.Halt{}
	for range 4 {
		x := recv(t, "a halt", halted)
		halts[x.ID] = x
	}
	h.await(t, 7+7+7+5+20)
	if !errors.Is(halts[0].Err, broken) || halts[0].Offset != 7 || halts[0].EventID == uuid.Nil ||
		halts[2].Offset != 7 || halts[3].Offset != 5 {
		t.Errorf("halts %+v", halts)
	}
	if n := len(m.Status().Halted()); n != 4 {
		t.Errorf("%d halts in Status, want 4", n)
	}
	// Partition 4 goes on.
	kafkatest.Produce(t, topic, records(5, 0, 4)...)
	h.await(t, 7+7+7+5+25)
	m.stop(t)
	if got := committed(t, kafkatest.Brokers(t), topic, topic, 5); got[0] != 7 || got[1] != 7 || got[2] != 7 ||
		got[3] != 5 || got[4] != 25 {
		t.Errorf("committed %v", got)
	}
	if logBuf.count("partition halted") != 4 || logBuf.count("hunter2") != 0 ||
		logBuf.count("the ledger is closed") != 1 {
		t.Errorf("log:\n%s", logBuf.b.String())
	}

	// The next start begins exactly there: no decided and committed event is repeated.
	h = newHandler()
	start(t, h, topic, config(topic))
	seen := h.await(t, 18+13+13+15)
	offsetsOf(t, seen[0], 7, 25)
	offsetsOf(t, seen[1], 7, 20)
	offsetsOf(t, seen[2], 7, 20)
	offsetsOf(t, seen[3], 5, 20)
	offsetsOf(t, seen[4], 25, 25)
}

func TestForeignIDs(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	id, ours := uuid.New(), event.NewID()
	hdr := func(name, value string) []kafkatest.Header {
		return []kafkatest.Header{{Key: name, Value: []byte(value)}}
	}
	kafkatest.Produce(t, topic,
		kafkatest.Record{Value: []byte("debezium"), Headers: hdr("id", id.String())},
		kafkatest.Record{Value: []byte("ours"), Headers: hdr("ce_id", ours.String())},
		kafkatest.Record{Value: []byte("no uuid"), Headers: hdr("id", "order-1")},
		kafkatest.Record{Value: nil, Key: []byte{0xff, 0}, Headers: hdr("\xff", "\x00")},
		kafkatest.Record{Value: []byte{}})
	h := newHandler()
	cfg := config(topic)
	cfg.IDHeader = "id"
	start(t, h, topic, cfg)
	e := h.await(t, 5)[0]
	at := kafkatest.ReadAll(t, topic)[3].Time
	for i, want := range []uuid.UUID{id, ours, event.ForeignID(topic, "order-1"), event.RecordID(topic, 0, 3, at)} {
		if e[i].ID != want {
			t.Errorf("event %d has id %s, want %s", i, e[i].ID, want)
		}
	}
	if e[3].Payload != nil || e[3].Key != "\xff\x00" || e[3].Headers["\xff"] != "\x00" || e[4].Payload == nil {
		t.Errorf("tombstone %+v, empty value %+v", e[3], e[4])
	}
}

func TestStartLatestIsRemembered(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(10, 0)...)
	cfg := config(topic)
	cfg.Start = consumer.StartLatest
	m := start(t, newHandler(), topic, cfg)
	await(t, "the start to be committed", func() bool {
		return committed(t, kafkatest.Brokers(t), topic, topic,
			1)[0] == 10
	})
	m.stop(t)
	kafkatest.Produce(t, topic, records(5, 0)...) // while the group is empty
	h := newHandler()
	start(t, h, topic, cfg)
	offsetsOf(t, h.await(t, 5)[0], 10, 15)
}

func TestPrepareComesFirstAndIsRepeated(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(1, 0)...)
	h := &preparing{handler: newHandler(), name: topic, fails: 2}
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		if h.failuresLeft() != 0 {
			t.Error("events before Prepare succeeded")
		}
		return applied(len(events)), nil
	}
	start(t, h, topic, config("")) // the group is the handler's name
	h.await(t, 1)
	if got := committed(t, kafkatest.Brokers(t), h.Consumer(), topic, 1); got[0] > 1 {
		t.Errorf("committed %v", got)
	}
	if h.group != h.Consumer() {
		t.Errorf("Prepare got group %q, want %q", h.group, h.Consumer())
	}
}

type preparing struct {
	*handler
	name  string
	once  sync.Mutex
	fails int
	group string
}

func (h *preparing) Consumer() string { return h.name }

func (h *preparing) failuresLeft() int {
	h.once.Lock()
	defer h.once.Unlock()
	return h.fails
}

func (h *preparing) Prepare(_ context.Context, group string) error {
	h.once.Lock()
	defer h.once.Unlock()
	h.group = group
	if h.fails > 0 {
		h.fails--
		return errors.New("the database is away")
	}
	return nil
}

func TestMissingTopicIsWaitedFor(t *testing.T) {
	t.Parallel()
	topic := strings.ToLower(t.Name()) + uuid.NewString()
	logBuf := &logs{}
	cfg := config(topic)
	cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
	h := newHandler()
	start(t, h, topic, cfg)
	await(t, "the log line", func() bool { return logBuf.count("create them") > 0 })
	kafkatest.CreateTopic(t, kafkatest.Brokers(t), topic, 2)
	kafkatest.Produce(t, topic, records(3, 0, 1)...)
	h.await(t, 6)
}

func TestConfigErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	brokers, topics, ok := []string{"localhost:9092"}, []string{"t"}, consumer.Config{Group: "g"}
	with := func(change func(*consumer.Config)) consumer.Config { c := ok; change(&c); return c }
	for want, f := range map[string]func() (*consumer.Consumer, error){
		"no handler": func() (*consumer.Consumer, error) { return consumer.New(nil, brokers, topics, ok) },
		"no brokers": func() (*consumer.Consumer, error) { return consumer.New(newHandler(), nil, topics, ok) },
		"host:port": func() (*consumer.Consumer, error) {
			return consumer.New(newHandler(), []string{"x"}, topics,
				ok)
		},
		"at least one": func() (*consumer.Consumer, error) { return consumer.New(newHandler(), brokers, nil, ok) },
		"Config.Group": func() (*consumer.Consumer, error) {
			return consumer.New(newHandler(), brokers, topics, consumer.Config{})
		},
		"Config.Batch": func() (*consumer.Consumer, error) {
			return consumer.New(newHandler(), brokers, topics, with(func(c *consumer.Config) { c.Batch = -1 }))
		},
		"HeartbeatInterval": func() (*consumer.Consumer, error) {
			return consumer.New(newHandler(), brokers, topics,
				with(func(c *consumer.Config) { c.HeartbeatInterval = time.Minute }))
		},
	} {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	if _, err := consumer.New(newHandler(), brokers, topics, ok); err != nil {
		t.Error(err)
	}
}

// TestHandlerThatEndsItsGoroutineHalts: the partition's own goroutine would end without a word.
func TestHandlerThatEndsItsGoroutineHalts(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 2)
	kafkatest.Produce(t, topic, records(5, 0, 1)...)
	h := newHandler()
	h.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		if events[0].Position.Partition == 0 {
			runtime.Goexit()
		}
		return applied(len(events)), nil
	}
	halted := make(chan consumer.Halt, 10)
	cfg := config(topic)
	cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
	start(t, h, topic, cfg)
	if x := recv(t, "the halt", halted); x.ID != 0 || x.Offset != 0 || !strings.Contains(x.Err.Error(), "Goexit") {
		t.Errorf("%+v", x)
	}
	h.await(t, 5)
}

// What an Observer's callback does says nothing about an event: its panic is logged with its stack, and the partition
// goes on.
func TestCallbacksThatPanic(t *testing.T) {
	t.Parallel()
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(10, 0)...)
	logBuf := &logs{}
	cfg := config(topic)
	cfg.Batch, cfg.BatchWait, cfg.CommitEvery = 2, -1, -1
	cfg.Logger = slog.New(slog.NewTextHandler(logBuf, nil))
	committed := make(chan int64, 20)
	cfg.Observer = consumer.Observer{
		Assigned: func(consumer.AssignedInfo) { panic("hunter2") },
		Handled:  func(consumer.HandledInfo) { panic("hunter2") },
		Committed: func(i consumer.CommittedInfo) {
			committed <- i.Offset
			panic("hunter2")
		},
	}
	h := newHandler()
	m := start(t, h, topic, cfg)
	h.await(t, 10)
	for recv(t, "a commit", committed) != 10 {
	}
	m.stop(t)
	for _, name := range []string{"Assigned", "Handled", "Committed"} {
		if logBuf.count("callback=Observer."+name+" ") == 0 {
			t.Errorf("nothing is said of %s", name)
		}
	}
	if logBuf.count("consume_test.go") == 0 || logBuf.count("hunter2") > 0 {
		t.Error("no stack in the log, or the value")
	}
}

// A header that is to have the ids, and that no record has: each record goes by its offset, so that its producer's
// repeat is another event. That is said once for each topic, with the header that may have been meant.
func TestIDHeaderThatNoRecordHas(t *testing.T) {
	t.Parallel()
	id := func(name, value string) kafkatest.Record {
		return kafkatest.Record{Value: []byte("{}"), Headers: []kafkatest.Header{{Key: name, Value: []byte(value)}}}
	}
	for name, c := range map[string]struct {
		header string
		record kafkatest.Record
		says   string // empty: nothing
	}{
		"another case":   {"event-id", id("Event-Id", uuid.NewString()), "it_has=Event-Id"},
		"none":           {"event-id", id("x", "y"), "header=event-id"},
		"a null":         {"event-id", id("event-id", "null"), "header=event-id"},
		"ce_id":          {"event-id", id("ce_id", uuid.NewString()), ""},
		"a UUIDv5":       {"event-id", id("event-id", uuid.NewSHA1(uuid.Nil, []byte("x")).String()), ""},
		"not configured": {"", id("x", "y"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, c.record, c.record, c.record)
			logBuf := &logs{}
			cfg := config(topic)
			cfg.IDHeader, cfg.Logger = c.header, slog.New(slog.NewTextHandler(logBuf, nil))
			h := newHandler()
			m := start(t, h, topic, cfg)
			seen := h.await(t, 3)
			m.stop(t)
			said := logBuf.count("records have no id in Config.IDHeader")
			switch {
			case c.says == "" && said > 0, c.says != "" && (said != 1 || logBuf.count(c.says) != 1):
				t.Errorf("said %d times, of %q: %d", said, c.says, logBuf.count(c.says))
			}
			if same := seen[0][0].ID == seen[0][1].ID; same != (name == "ce_id" || name == "a UUIDv5") {
				t.Errorf("the repeat has the same id: %v", same)
			}
		})
	}
}
