package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/watermill"
)

// feed is a message.Subscriber that delivers what a test gives it, and gives it again when it is nacked, as a broker
// does.
type feed struct {
	mu     sync.Mutex
	topics map[string]chan *message.Message
	// nacked and acked count answers.
	nacked, acked atomic.Int32
	// onAck is called when an ack has come.
	onAck func(m *message.Message)
	// most is how often a message is delivered; 0: until it is acked.
	most int
}

func (f *feed) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, out := f.topic(topic), make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case m := <-in:
				f.deliver(ctx, out, m)
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (f *feed) deliver(ctx context.Context, out chan<- *message.Message, m *message.Message) {
	for n := 1; ; n++ {
		try := m.Copy()
		its, cancel := context.WithCancel(ctx)
		defer cancel()
		try.SetContext(its)
		select {
		case out <- try:
		case <-ctx.Done():
			return
		}
		select {
		case <-try.Acked():
			if f.onAck != nil {
				f.onAck(try)
			}
			f.acked.Add(1)
			return
		case <-try.Nacked():
			f.nacked.Add(1)
			if n == f.most {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (f *feed) topic(name string) chan *message.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.topics == nil {
		f.topics = map[string]chan *message.Message{}
	}
	if f.topics[name] == nil {
		f.topics[name] = make(chan *message.Message, 100)
	}
	return f.topics[name]
}

func (f *feed) give(topic string, messages ...*message.Message) {
	for _, m := range messages {
		f.topic(topic) <- m
	}
}

func (f *feed) Close() error { return nil }

// routed runs a router until the end of the test.
func routed(t testing.TB, add func(r *message.Router)) {
	t.Helper()
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	add(r)
	done := make(chan error, 1)
	go func() { done <- r.Run(context.Background()) }()
	<-r.Running()
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
}

// releasing runs an inbox's releases until the end of the test.
func releasing(t testing.TB, in *inbox.Inbox) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// effects is a database with the inbox and a table for what handlers do.
func effects(t testing.TB, sets ...pgtest.Set) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t, append(sets, migrations.Inbox)...)
	db.Exec(t, "create table effect (n bigint generated always as identity, what text not null)")
	return db
}

func did(t testing.TB, db *pgtest.DB) string {
	t.Helper()
	return pgtest.One[string](t, db, "select coalesce(string_agg(what, ' ' order by n), '') from effect")
}

// do writes the payload.
func do(m *message.Message, tx pgx.Tx) error {
	_, err := tx.Exec(m.Context(), "insert into effect (what) values ($1)", string(m.Payload))
	return err
}

// TestEffectOnceAndAckAfterCommit: a message that comes twice is applied once, the second time without its handler, and
// is acknowledged when the effect is there for others to see.
func TestEffectOnceAndAckAfterCommit(t *testing.T) {
	t.Parallel()
	db := effects(t)
	var runs atomic.Int32
	f := &feed{onAck: func(m *message.Message) {
		if n := pgtest.One[int](t, db, "select count(*) from effect where what = $1", string(m.Payload)); n != 1 {
			t.Errorf("%s was acknowledged with %d effects to see", m.Payload, n)
		}
	}}
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	routed(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			runs.Add(1)
			e, ok := watermill.Event(m.Context())
			own, err := watermill.Tx(m.Context())
			if !ok || err != nil || own != tx || e.ID.String() != m.UUID ||
				message.HandlerNameFromCtx(m.Context()) != "h" {
				t.Errorf("event %v, %v, %v", e.ID, ok, err)
			}
			m.Ack() // of the copy: nothing happens
			return do(m, tx)
		}))
	})
	a, b := newMessage("k", "a"), newMessage("k", "b")
	f.give("t", a, b, a, a, b)
	await(t, "five acks", func() bool { return f.acked.Load() == 5 })
	if got := did(t, db); got != "a b" || runs.Load() != 2 || f.nacked.Load() != 0 {
		t.Errorf("effects %q after %d runs, %d nacks", got, runs.Load(), f.nacked.Load())
	}
}

// TestAHandlerCannotCommit: its transaction refuses, and the message is parked without its effect.
func TestAHandlerCannotCommit(t *testing.T) {
	t.Parallel()
	db := effects(t)
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	f := &feed{}
	routed(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			if err := do(m, tx); err != nil {
				return err
			}
			return tx.Commit(m.Context())
		}))
	})
	f.give("t", newMessage("", "x"))
	await(t, "the ack", func() bool { return f.acked.Load() == 1 })
	if code := pgtest.One[string](t, db, "select code from inbox_parked"); code != inbox.CodeTransaction ||
		did(t, db) != "" {
		t.Errorf("parked with code %s, effects %q", code, did(t, db))
	}
}

func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	pgtest.Await(t, what, func() (bool, error) { return cond(), nil })
}

// TestNoKeyIsBurned: whatever ends the first attempt of a handler, the message is applied when it comes again.
// Watermill's own Deduplicator drops it then (internal/verify/interop shows that).
func TestNoKeyIsBurned(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(m *message.Message, tx pgx.Tx, end func()) error{
		"an error": func(*message.Message, pgx.Tx, func()) error { return errors.New("try again") },
		"a panic":  func(*message.Message, pgx.Tx, func()) error { panic("oops") },
		"a failed statement": func(m *message.Message, tx pgx.Tx, _ func()) error {
			_, err := tx.Exec(m.Context(), "select 1/0")
			return err
		},
		"the subscription ends": func(m *message.Message, _ pgx.Tx, end func()) error {
			end()
			<-m.Context().Done()
			return m.Context().Err()
		},
		"the connection ends": func(m *message.Message, tx pgx.Tx, _ func()) error {
			return tx.Conn().PgConn().Close(m.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := effects(t)
			_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
			var runs atomic.Int32
			ctx, cancel := context.WithCancel(t.Context())
			h := w.Middleware(func(m *message.Message) ([]*message.Message, error) {
				tx, err := watermill.Tx(m.Context())
				if err != nil {
					return nil, err
				}
				if err := do(m, tx); err != nil {
					return nil, err
				}
				if runs.Add(1) == 1 {
					return nil, first(m, tx, cancel)
				}
				return nil, nil
			})
			f := &feed{}
			m := newMessage("k", "a")
			f.give("t", m)
			r, err := message.NewRouter(message.RouterConfig{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.AddConsumerHandler("h", "t", f, func(m *message.Message) error { _, err := h(m); return err })
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			if name == "the subscription ends" {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if did(t, db) != "" || f.acked.Load() != 0 {
					t.Fatal("it was applied, or acknowledged, though it ended")
				}
				f = &feed{}
				f.give("t", m)
				routed(t, func(r *message.Router) {
					r.AddConsumerHandler("h", "t", f, func(m *message.Message) error { _, err := h(m); return err })
				})
			}
			await(t, "the ack", func() bool { return f.acked.Load() == 1 })
			if got := did(t, db); got != "a" || runs.Load() != 2 {
				t.Errorf("effects %q after %d runs", got, runs.Load())
			}
			if name != "the subscription ends" {
				if err := errors.Join(r.Close(), <-done); err != nil {
					t.Error(err)
				}
			}
			cancel()
		})
	}
}

// TestNackLeavesNothing: what is not decided is not acknowledged, and nothing of it is kept.
func TestNackLeavesNothing(t *testing.T) {
	t.Parallel()
	returns := func(m *message.Message) ([]*message.Message, error) {
		tx, err := watermill.Tx(m.Context())
		if err != nil {
			return nil, err
		}
		return message.Messages{newMessage("k", "out")}, do(m, tx)
	}
	fails := func(m *message.Message) ([]*message.Message, error) { return nil, errors.New("it always fails") }
	noID := newMessage("", "no id")
	noID.UUID = ""
	for name, c := range map[string]struct {
		cfg     inbox.Config
		m       *message.Message
		handler message.HandlerFunc
	}{
		"messages returned": {inbox.Config{}, newMessage("k", "a"), returns},
		"halt":              {inbox.Config{OnFailure: inbox.Halt, MaxAttempts: 2}, newMessage("k", "a"), fails},
		"no id":             {inbox.Config{}, noID, fails},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := effects(t)
			_, w := newInboxes(t, db, "test", c.cfg, watermill.InboxConfig{})
			f, told := &feed{most: 2}, make(chan error, 2)
			routed(t, func(r *message.Router) {
				published := &broker{do: func(m *message.Message) error {
					t.Error("the router published", m.Payload)
					return nil
				}}
				r.AddHandler("h", "t", f, "out", published, c.handler).AddMiddleware(
					func(next message.HandlerFunc) message.HandlerFunc {
						return func(m *message.Message) ([]*message.Message, error) {
							out, err := next(m)
							told <- err
							return out, err
						}
					}, w.Middleware)
			})
			f.give("t", c.m)
			await(t, "two nacks", func() bool { return f.nacked.Load() == 2 })
			rows := pgtest.One[int](t, db, "select (select count(*) from inbox_message) + (select count(*) from "+
				"inbox_message_any) + (select count(*) from inbox_parked) + (select count(*) from effect)")
			if rows != 0 || f.acked.Load() != 0 {
				t.Errorf("%d rows, %d acks", rows, f.acked.Load())
			}
			want := map[string]string{
				"messages returned": "NewOutboxFromContext", "halt": "halts its partition",
				"no id": "no UUID",
			}[name]
			for range 2 {
				if err := <-told; err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the router was told %v", err)
				}
			}
		})
	}
}

// TestP9_6_ParkedAndReleased: a message that finally fails is acknowledged and parked, the later ones of its key go
// behind it, and what an operator releases reaches the handler as it was, in order.
func TestP9_6_ParkedAndReleased(t *testing.T) {
	t.Parallel()
	db := effects(t)
	in, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	var mu sync.Mutex
	mended := false
	var seen []*message.Message
	f := &feed{}
	routed(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			mu.Lock()
			defer mu.Unlock()
			if string(m.Payload) == "bad" && !mended {
				return inbox.Terminal("unknown_account", errors.New("no such account"))
			}
			seen = append(seen, m)
			return do(m, tx)
		}))
	})
	bad, behind, other := newMessage("k", "bad"), newMessage("k", "behind"), newMessage("l", "other")
	bad.UUID = "no uuid"
	bad.Metadata.Set("ce_extension", "x\x00\xff")
	bad.Metadata.Set("correlation_id", "c")
	f.give("t", bad, behind, other)
	await(t, "three acks", func() bool { return f.acked.Load() == 3 })
	if got := did(t, db); got != "other" {
		t.Fatalf("effects %q", got)
	}
	o, err := operator.New(db.Pool, db.Schema, "test", "ada")
	if err != nil {
		t.Fatal(err)
	}
	list, err := o.Parked(t.Context(), operator.ParkedFilter{})
	if err != nil || len(list) != 2 || list[0].Code != "unknown_account" {
		t.Fatal(list, err)
	}
	mu.Lock()
	mended = true
	mu.Unlock()
	releasing(t, in)
	if _, err := o.ReleaseKey(t.Context(), "", "t", "k", "mended"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, "select not exists (select from inbox_parked_key)")
	if got := did(t, db); got != "other bad behind" {
		t.Errorf("effects %q", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 3 || !seen[1].Equals(bad) || !seen[2].Equals(behind) {
		t.Errorf("released %+v, want %+v", seen[1:], []*message.Message{bad, behind})
	}
	// It comes once more: a duplicate.
	f.give("t", bad)
	await(t, "the fourth ack", func() bool { return f.acked.Load() == 4 })
	if got := did(t, db); got != "other bad behind" {
		t.Errorf("effects %q", got)
	}
}

// TestP9_1_Quarantined: an id from before the window, or from far ahead, is acknowledged and waits for a person, alone.
func TestP9_1_Quarantined(t *testing.T) {
	t.Parallel()
	db := effects(t)
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	f := &feed{}
	routed(t, func(r *message.Router) { r.AddConsumerHandler("h", "t", f, w.Handle(do)) })
	ahead, now := newMessage("k", "ahead"), newMessage("k", "now")
	ahead.UUID = event.IDAt(time.Now().Add(30 * 24 * time.Hour)).String()
	f.give("t", ahead, now)
	await(t, "two acks", func() bool { return f.acked.Load() == 2 })
	if got := did(t, db); got != "now" {
		t.Errorf("effects %q", got)
	}
	if n := pgtest.One[int](t, db, "select count(*) from inbox_parked where kind = 'quarantined' and message_id = "+
		"$1::text::uuid", ahead.UUID); n != 1 {
		t.Errorf("%d quarantined", n)
	}
}

// TestPublishInTheHandlersTransaction: what a handler publishes through the context is committed with its effect, once.
func TestPublishInTheHandlersTransaction(t *testing.T) {
	t.Parallel()
	db := effects(t, migrations.Outbox)
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	out := watermill.NewOutboxFromContext(watermill.OutboxConfig{})
	var runs atomic.Int32
	f := &feed{}
	routed(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			next := newMessage("k", "from "+string(m.Payload))
			next.SetContext(m.Context())
			if err := errors.Join(do(m, tx), out.Publish("next", next)); err != nil {
				return err
			}
			if runs.Add(1) == 1 {
				return errors.New("once more")
			}
			return nil
		}))
	})
	m := newMessage("k", "a")
	f.give("t", m, m)
	await(t, "two acks", func() bool { return f.acked.Load() == 2 })
	got := pgtest.One[string](t, db, "select string_agg(topic || ': ' || convert_from(payload, 'UTF8'), ', ') from "+
		"outbox_event")
	if got != "next: from a" || runs.Load() != 2 {
		t.Errorf("appended %q after %d runs", got, runs.Load())
	}
}

// TestTraceThroughAHandler: the run of a handler is linked to the trace of its message, and what it publishes goes on
// in the run's.
func TestTraceThroughAHandler(t *testing.T) {
	t.Parallel()
	db, spans := effects(t, migrations.Outbox), tracetest.NewSpanRecorder()
	_, w := newInboxes(t, db, "test", inbox.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
	}, watermill.InboxConfig{})
	out := watermill.NewOutboxFromContext(watermill.OutboxConfig{})
	f := &feed{}
	routed(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, _ pgx.Tx) error {
			return out.Publish("next", message.NewMessageWithContext(m.Context(), event.NewID().String(), nil))
		}))
	})
	const producers = "4bf92f3577b34da6a3ce929d0e0e4736"
	m := newMessage("k", "a")
	m.Metadata.Set("traceparent", "00-"+producers+"-00f067aa0ba902b7-01")
	f.give("t", m)
	await(t, "an ack", func() bool { return f.acked.Load() == 1 })
	var run sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if len(s.Links()) == 1 && s.Links()[0].SpanContext.TraceID().String() == producers {
			run = s
		}
	}
	if run == nil {
		t.Fatal("no span is linked to the message's trace")
	}
	got := pgtest.One[string](t, db, "select headers->>'traceparent' from outbox_event")
	if !strings.HasPrefix(got, "00-"+run.SpanContext().TraceID().String()+"-") {
		t.Errorf("what was published goes under %s, and the run is %s", got, run.SpanContext().TraceID())
	}
}

// TestTwoHandlersOfATopic that share an inbox would share its messages: that is refused. With an inbox each both run.
func TestTwoHandlersOfATopic(t *testing.T) {
	t.Parallel()
	db := effects(t)
	_, shared := newInboxes(t, db, "shared", inbox.Config{}, watermill.InboxConfig{})
	_, own := newInboxes(t, db, "own", inbox.Config{}, watermill.InboxConfig{})
	first, second, third := &feed{}, &feed{most: 1}, &feed{}
	routed(t, func(r *message.Router) {
		r.AddConsumerHandler("first", "t", first, shared.Handle(do))
		r.AddConsumerHandler("second", "t", second, shared.Handle(do))
		r.AddConsumerHandler("third", "t", third, own.Handle(do))
	})
	m := newMessage("k", "a")
	first.give("t", m)
	await(t, "the first", func() bool { return first.acked.Load() == 1 })
	second.give("t", m)
	third.give("t", m)
	await(t, "the others", func() bool { return second.nacked.Load() == 1 && third.acked.Load() == 1 })
	if got := did(t, db); got != "a a" {
		t.Errorf("effects %q", got)
	}
}

// TestP9_5_CountedRuns: with the place in the log known, a message that was under way whenever the process ended is
// parked.
func TestP9_5_CountedRuns(t *testing.T) {
	t.Parallel()
	db := effects(t)
	place := func(m *message.Message) (watermill.Origin, bool) {
		var o watermill.Origin
		_, err := fmt.Sscan(m.Metadata.Get("offset"), &o.Offset)
		o.Partition, o.Key = 3, []byte("key of the record")
		return o, err == nil
	}
	at := func(m *message.Message, offset int) *message.Message {
		m.Metadata.Set("offset", fmt.Sprint(offset))
		return m
	}
	in, w := newInboxes(t, db, "test", inbox.Config{CrashAttempts: 2}, watermill.InboxConfig{Origin: place})
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What two processes have left that were killed in a counted run.
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts)
			values ('test', 't', 3, 7, 8, 2)`)
	f := &feed{}
	var runs []string
	routed(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			runs = append(runs, string(m.Payload))
			return do(m, tx)
		}))
	})
	f.give("t", at(newMessage("k", "killer"), 7), at(newMessage("l", "behind"), 8))
	await(t, "two acks", func() bool { return f.acked.Load() == 2 })
	if got := pgtest.One[string](t, db, "select string_agg(kind || ' ' || code || ' ' || convert_from(record_key, "+
		"'UTF8') || ' ' || record_offset, ', ' order by id) from inbox_parked"); got != "failed killed key of the "+
		"record 7, behind  key of the record 8" {
		t.Errorf("parked %q", got)
	}
	if len(runs) != 0 {
		t.Errorf("ran %v", runs)
	}
}

// TestAFreshAssignmentIsCounted: offsets that do not follow each other begin a range anew, as an assignment does.
func TestAFreshAssignmentIsCounted(t *testing.T) {
	t.Parallel()
	db := effects(t)
	var offset atomic.Int64
	_, w := newInboxes(t, db, "test", inbox.Config{},
		watermill.InboxConfig{Origin: func(*message.Message) (watermill.Origin, bool) {
			return watermill.Origin{Offset: offset.Load()}, true
		}})
	var ranges []string
	f := &feed{}
	routed(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			var at string
			err := db.Pool.QueryRow(m.Context(), "select coalesce((select from_offset || '-' || to_offset from "+
				"inbox_progress), 'none')").Scan(&at)
			ranges = append(ranges, at)
			return errors.Join(err, do(m, tx))
		}))
	})
	for i, at := range []int64{10, 11, 5} {
		offset.Store(at)
		f.give("t", newMessage("", fmt.Sprint(at)))
		await(t, "the ack", func() bool { return f.acked.Load() == int32(i)+1 })
	}
	if want := []string{"10-11", "11-11", "5-6"}; !slices.Equal(ranges, want) {
		t.Errorf("ranges %v, want %v", ranges, want)
	}
}

// TestP9_8_NumbersNeedAPlace: an inbox that goes by numbers takes no message whose partition and offset nobody knows.
func TestP9_8_NumbersNeedAPlace(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	for _, dedup := range []inbox.Dedup{inbox.ByWatermark, inbox.ByOffset} {
		name := fmt.Sprint("numbers", dedup)
		_, w := newInboxes(t, db, name, inbox.Config{Dedup: dedup}, watermill.InboxConfig{})
		if _, err := watermill.Consumed(w, "t", newMessage("k", "v")); err == nil ||
			!strings.Contains(err.Error(), "Origin") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, w := newInboxes(t, db, "no time", inbox.Config{Dedup: inbox.ByOffset},
		watermill.InboxConfig{Origin: func(*message.Message) (watermill.Origin, bool) {
			return watermill.Origin{Offset: 1}, true
		}})
	if _, err := watermill.Consumed(w, "t", newMessage("k", "v")); err == nil ||
		!strings.Contains(err.Error(), "time of its record") {
		t.Errorf("without a time: %v", err)
	}
}

// TestIDs: which id a message is known by.
func TestIDs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	_, plain := newInboxes(t, db, "a", inbox.Config{}, watermill.InboxConfig{})
	_, own := newInboxes(t, db, "b", inbox.Config{}, watermill.InboxConfig{ID: "id"})
	at := watermill.Origin{Partition: 1, Offset: 2, Time: time.UnixMilli(3)}
	_, placed := newInboxes(t, db, "c", inbox.Config{},
		watermill.InboxConfig{Origin: func(*message.Message) (watermill.Origin, bool) { return at, true }})
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	for name, x := range map[string]struct {
		in       *watermill.Inbox
		uuid     string
		metadata message.Metadata
		want     uuid.UUID
	}{
		"the UUID":          {plain, a.String(), nil, a},
		"ce_id wins":        {plain, a.String(), message.Metadata{"ce_id": b.String()}, b},
		"its own name":      {own, a.String(), message.Metadata{"ce_id": b.String(), "id": c.String()}, c},
		"not there":         {own, a.String(), message.Metadata{"ce_id": b.String()}, b},
		"no UUID":           {plain, "x", nil, event.ForeignID("t", "x")},
		"no UUID, a source": {plain, "x", message.Metadata{"ce_source": "s"}, event.ForeignID("s", "x")},
		"its place":         {placed, "", nil, event.RecordID("t", 1, 2, time.UnixMilli(3))},
		"not its place":     {placed, a.String(), nil, a},
	} {
		m := message.NewMessage(x.uuid, nil)
		m.Metadata = x.metadata
		if e, err := watermill.Consumed(x.in, "t", m); err != nil || e.ID != x.want {
			t.Errorf("%s: %v, %v; want %v", name, e.ID, err, x.want)
		}
	}
}
