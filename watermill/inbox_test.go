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

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/watermill"
)

// feed is a message.Subscriber that delivers a test's messages, and redelivers nacked ones as a broker does.
type feed struct {
	mu            sync.Mutex
	topics        map[string]chan *message.Message
	nacked, acked atomic.Int32
	onAck         func(m *message.Message)
	maxDeliveries int // of a message; 0: until it is acked
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
		tryCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		try.SetContext(tryCtx)
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
			if n == f.maxDeliveries {
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

func (f *feed) send(topic string, messages ...*message.Message) {
	for _, m := range messages {
		f.topic(topic) <- m
	}
}

func (f *feed) Close() error { return nil }

// runRouter runs a router until the end of the test.
func runRouter(t testing.TB, add func(r *message.Router)) {
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

// runInbox runs released messages until the end of the test.
func runInbox(t testing.TB, in *inbox.Inbox) {
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

// newEffectDB returns a database with the inbox and a table for the handlers' effects.
func newEffectDB(t testing.TB, sets ...pgtest.Set) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t, append(sets, migrations.Inbox)...)
	db.Exec(t, "create table effect (n bigint generated always as identity, payload text not null)")
	return db
}

func effects(t testing.TB, db *pgtest.DB) string {
	t.Helper()
	return pgtest.One[string](t, db, "select coalesce(string_agg(payload, ' ' order by n), '') from effect")
}

// insertEffect is a handler that writes the message's payload.
func insertEffect(m *message.Message, tx pgx.Tx) error {
	_, err := tx.Exec(m.Context(), "insert into effect (payload) values ($1)", string(m.Payload))
	return err
}

// TestEffectOnceAndAckAfterCommit: a message that is delivered twice is applied once, the second time without its
// handler, and is acknowledged when its effect is committed.
func TestEffectOnceAndAckAfterCommit(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t)
	var runs atomic.Int32
	f := &feed{onAck: func(m *message.Message) {
		if n := pgtest.One[int](t, db, "select count(*) from effect where payload = $1", string(m.Payload)); n != 1 {
			t.Errorf("%s was acknowledged with %d committed effects", m.Payload, n)
		}
	}}
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			runs.Add(1)
			e, ok := watermill.Event(m.Context())
			own, err := watermill.Tx(m.Context())
			if !ok || err != nil || own != tx || e.ID.String() != m.UUID ||
				message.HandlerNameFromCtx(m.Context()) != "h" {
				t.Errorf("event %v, %v, %v", e.ID, ok, err)
			}
			m.Ack() // acks the copy: no effect
			return insertEffect(m, tx)
		}))
	})
	a, b := newMessage("k", "a"), newMessage("k", "b")
	f.send("t", a, b, a, a, b)
	await(t, "five acks", func() bool { return f.acked.Load() == 5 })
	if got := effects(t, db); got != "a b" || runs.Load() != 2 || f.nacked.Load() != 0 {
		t.Errorf("effects %q after %d runs, %d nacks", got, runs.Load(), f.nacked.Load())
	}
}

// TestHandlerCommitIsRefused: the message is parked without its effect.
func TestHandlerCommitIsRefused(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t)
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	f := &feed{}
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			if err := insertEffect(m, tx); err != nil {
				return err
			}
			return tx.Commit(m.Context())
		}))
	})
	f.send("t", newMessage("", "x"))
	await(t, "the ack", func() bool { return f.acked.Load() == 1 })
	if code := pgtest.One[string](t, db, "select code from inbox_parked"); code != inbox.CodeTransaction ||
		effects(t, db) != "" {
		t.Errorf("parked with code %s, effects %q", code, effects(t, db))
	}
}

func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	pgtest.Await(t, what, func() (bool, error) { return cond(), nil })
}

// TestFailedAttemptIsApplied: a message whose first attempt failed is applied when it is redelivered. Watermill's
// Deduplicator drops it (verify/interop shows that).
func TestFailedAttemptIsApplied(t *testing.T) {
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
			db := newEffectDB(t)
			_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
			var runs atomic.Int32
			ctx, cancel := context.WithCancel(t.Context())
			h := w.Middleware(func(m *message.Message) ([]*message.Message, error) {
				tx, err := watermill.Tx(m.Context())
				if err != nil {
					return nil, err
				}
				if err := insertEffect(m, tx); err != nil {
					return nil, err
				}
				if runs.Add(1) == 1 {
					return nil, first(m, tx, cancel)
				}
				return nil, nil
			})
			f := &feed{}
			m := newMessage("k", "a")
			f.send("t", m)
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
				if effects(t, db) != "" || f.acked.Load() != 0 {
					t.Fatal("the message was applied or acknowledged, though its subscription ended")
				}
				f = &feed{}
				f.send("t", m)
				runRouter(t, func(r *message.Router) {
					r.AddConsumerHandler("h", "t", f, func(m *message.Message) error { _, err := h(m); return err })
				})
			}
			await(t, "the ack", func() bool { return f.acked.Load() == 1 })
			if got := effects(t, db); got != "a" || runs.Load() != 2 {
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

// TestUndecidedIsNacked: an undecided message is nacked and leaves no row.
func TestUndecidedIsNacked(t *testing.T) {
	t.Parallel()
	returnMessages := func(m *message.Message) ([]*message.Message, error) {
		tx, err := watermill.Tx(m.Context())
		if err != nil {
			return nil, err
		}
		return message.Messages{newMessage("k", "out")}, insertEffect(m, tx)
	}
	fail := func(m *message.Message) ([]*message.Message, error) { return nil, errors.New("it always fails") }
	noID := newMessage("", "no id")
	noID.UUID = ""
	for name, c := range map[string]struct {
		cfg     inbox.Config
		m       *message.Message
		handler message.HandlerFunc
	}{
		"messages returned": {inbox.Config{}, newMessage("k", "a"), returnMessages},
		"halt":              {inbox.Config{OnFailure: inbox.Halt, MaxAttempts: 2}, newMessage("k", "a"), fail},
		"no id":             {inbox.Config{}, noID, fail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newEffectDB(t)
			_, w := newInboxes(t, db, "test", c.cfg, watermill.InboxConfig{})
			f, errs := &feed{maxDeliveries: 2}, make(chan error, 2)
			runRouter(t, func(r *message.Router) {
				published := &broker{do: func(m *message.Message) error {
					t.Error("the router published", m.Payload)
					return nil
				}}
				r.AddHandler("h", "t", f, "out", published, c.handler).AddMiddleware(
					func(next message.HandlerFunc) message.HandlerFunc {
						return func(m *message.Message) ([]*message.Message, error) {
							out, err := next(m)
							errs <- err
							return out, err
						}
					}, w.Middleware)
			})
			f.send("t", c.m)
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
				if err := <-errs; err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the router got %v", err)
				}
			}
		})
	}
}

// TestP9_6_ParkedAndReleased: a message that finally fails is acknowledged and parked, with the later ones of its key;
// released messages reach the handler unchanged, in order.
func TestP9_6_ParkedAndReleased(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t)
	in, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	var mu sync.Mutex
	fixed := false
	var seen []*message.Message
	f := &feed{}
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			mu.Lock()
			defer mu.Unlock()
			if string(m.Payload) == "bad" && !fixed {
				return outcome.Terminal("unknown_account", errors.New("no such account"))
			}
			seen = append(seen, m)
			return insertEffect(m, tx)
		}))
	})
	bad, behind, other := newMessage("k", "bad"), newMessage("k", "behind"), newMessage("l", "other")
	bad.UUID = "no uuid"
	bad.Metadata.Set("ce_extension", "x\x00\xff")
	bad.Metadata.Set("correlation_id", "c")
	f.send("t", bad, behind, other)
	await(t, "three acks", func() bool { return f.acked.Load() == 3 })
	if got := effects(t, db); got != "other" {
		t.Fatalf("effects %q", got)
	}
	o, err := operator.New(db.Pool, db.Schema, "test", "ada")
	if err != nil {
		t.Fatal(err)
	}
	list, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil || len(list) != 2 || list[0].Code != "unknown_account" {
		t.Fatal(list, err)
	}
	mu.Lock()
	fixed = true
	mu.Unlock()
	runInbox(t, in)
	if _, err := o.ReleaseKey(t.Context(), "", "t", "k", admin.Seen{}, "fixed"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, "select not exists (select from inbox_parked_key)")
	if got := effects(t, db); got != "other bad behind" {
		t.Errorf("effects %q", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 3 || !seen[1].Equals(bad) || !seen[2].Equals(behind) {
		t.Errorf("released %+v, want %+v", seen[1:], []*message.Message{bad, behind})
	}
	f.send("t", bad)
	await(t, "the fourth ack", func() bool { return f.acked.Load() == 4 })
	if got := effects(t, db); got != "other bad behind" {
		t.Errorf("effects %q", got)
	}
}

// TestP9_1_Quarantined: a message whose id has a time far ahead is acknowledged and waits for an operator, without its
// key.
func TestP9_1_Quarantined(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t)
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	f := &feed{}
	runRouter(t, func(r *message.Router) { r.AddConsumerHandler("h", "t", f, w.Handle(insertEffect)) })
	ahead, now := newMessage("k", "ahead"), newMessage("k", "now")
	ahead.UUID = event.IDAt(time.Now().Add(30 * 24 * time.Hour)).String()
	f.send("t", ahead, now)
	await(t, "two acks", func() bool { return f.acked.Load() == 2 })
	if got := effects(t, db); got != "now" {
		t.Errorf("effects %q", got)
	}
	if n := pgtest.One[int](t, db, "select count(*) from inbox_parked where kind = 'quarantined' and message_id = "+
		"$1::text::uuid", ahead.UUID); n != 1 {
		t.Errorf("%d quarantined", n)
	}
}

// TestPublishInHandlerTransaction: messages that a handler publishes through the context are committed with its effect.
func TestPublishInHandlerTransaction(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t, migrations.Outbox)
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	out := watermill.NewOutboxFromContext(watermill.OutboxConfig{})
	var runs atomic.Int32
	f := &feed{}
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			next := newMessage("k", "from "+string(m.Payload))
			next.SetContext(m.Context())
			if err := errors.Join(insertEffect(m, tx), out.Publish("next", next)); err != nil {
				return err
			}
			if runs.Add(1) == 1 {
				return errors.New("try again")
			}
			return nil
		}))
	})
	m := newMessage("k", "a")
	f.send("t", m, m)
	await(t, "two acks", func() bool { return f.acked.Load() == 2 })
	got := pgtest.One[string](t, db, "select string_agg(topic || ': ' || convert_from(payload, 'UTF8'), ', ') from "+
		"outbox_event")
	if got != "next: from a" || runs.Load() != 2 {
		t.Errorf("appended %q after %d runs", got, runs.Load())
	}
}

// TestConsumedUUIDIsRefused: a handler that passes the UUID of its message on would publish an event that consumers of
// both drop.
func TestConsumedUUIDIsRefused(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t, migrations.Outbox)
	_, w := newInboxes(t, db, "test", inbox.Config{}, watermill.InboxConfig{})
	out := watermill.NewOutboxFromContext(watermill.OutboxConfig{})
	refused := make(chan error, 10)
	f := &feed{}
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, _ pgx.Tx) error {
			refused <- out.Publish("next", message.NewMessageWithContext(m.Context(), m.UUID, nil))
			e, _ := watermill.Event(m.Context())
			next := event.Derive(e, "next", event.Event{Topic: "next"})
			return out.Publish("next", message.NewMessageWithContext(m.Context(), next.ID.String(), nil))
		}))
	})
	m := newMessage("k", "a")
	f.send("t", m)
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "event.Derive") {
		t.Errorf("the same UUID: %v", err)
	}
	await(t, "an ack", func() bool { return f.acked.Load() == 1 })
	if n := pgtest.One[int](t, db, "select count(*) from outbox_event where message_id <> $1::text::uuid",
		m.UUID); n != 1 {
		t.Errorf("%d events, want the one with a UUID of its own", n)
	}
}

// TestTraceThroughHandler: the span of a handler's run is linked to its message's trace; messages that the handler
// publishes continue the run's trace.
func TestTraceThroughHandler(t *testing.T) {
	t.Parallel()
	db, spans := newEffectDB(t, migrations.Outbox), tracetest.NewSpanRecorder()
	_, w := newInboxes(t, db, "test", inbox.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
	}, watermill.InboxConfig{})
	out := watermill.NewOutboxFromContext(watermill.OutboxConfig{})
	f := &feed{}
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, _ pgx.Tx) error {
			return out.Publish("next", message.NewMessageWithContext(m.Context(), event.NewID().String(), nil))
		}))
	})
	const producerTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	m := newMessage("k", "a")
	m.Metadata.Set("traceparent", "00-"+producerTrace+"-00f067aa0ba902b7-01")
	f.send("t", m)
	await(t, "an ack", func() bool { return f.acked.Load() == 1 })
	var run sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if len(s.Links()) == 1 && s.Links()[0].SpanContext.TraceID().String() == producerTrace {
			run = s
		}
	}
	if run == nil {
		t.Fatal("no span is linked to the message's trace")
	}
	got := pgtest.One[string](t, db, "select headers->>'traceparent' from outbox_event")
	if !strings.HasPrefix(got, "00-"+run.SpanContext().TraceID().String()+"-") {
		t.Errorf("published with traceparent %s, the run's trace is %s", got, run.SpanContext().TraceID())
	}
}

// TestTwoHandlersOfOneTopic: two that share an inbox are refused; with an inbox each, both run.
func TestTwoHandlersOfOneTopic(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t)
	_, shared := newInboxes(t, db, "shared", inbox.Config{}, watermill.InboxConfig{})
	_, own := newInboxes(t, db, "own", inbox.Config{}, watermill.InboxConfig{})
	first, second, third := &feed{}, &feed{maxDeliveries: 1}, &feed{}
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("first", "t", first, shared.Handle(insertEffect))
		r.AddConsumerHandler("second", "t", second, shared.Handle(insertEffect))
		r.AddConsumerHandler("third", "t", third, own.Handle(insertEffect))
	})
	m := newMessage("k", "a")
	first.send("t", m)
	await(t, "the first", func() bool { return first.acked.Load() == 1 })
	second.send("t", m)
	third.send("t", m)
	await(t, "the others", func() bool { return second.nacked.Load() == 1 && third.acked.Load() == 1 })
	if got := effects(t, db); got != "a a" {
		t.Errorf("effects %q", got)
	}
}

// TestP9_5_CountedRuns: with InboxConfig.Origin, a message whose runs killed their process is parked.
func TestP9_5_CountedRuns(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t)
	origin := func(m *message.Message) (watermill.Origin, bool) {
		var o watermill.Origin
		_, err := fmt.Sscan(m.Metadata.Get("offset"), &o.Offset)
		o.Partition, o.Key = 3, []byte("key of the record")
		return o, err == nil
	}
	at := func(m *message.Message, offset int) *message.Message {
		m.Metadata.Set("offset", fmt.Sprint(offset))
		return m
	}
	in, w := newInboxes(t, db, "test", inbox.Config{CrashAttempts: 2}, watermill.InboxConfig{Origin: origin})
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The state after two processes were killed in a counted run.
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, attempts)
			values ('test', 't', 3, 7, 8, 2)`)
	f := &feed{}
	var runs []string
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			runs = append(runs, string(m.Payload))
			return insertEffect(m, tx)
		}))
	})
	f.send("t", at(newMessage("k", "killer"), 7), at(newMessage("l", "behind"), 8))
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

// TestOffsetGapIsAnAssignment: an offset that does not follow the last one begins a new range, as an assignment does.
func TestOffsetGapIsAnAssignment(t *testing.T) {
	t.Parallel()
	db := newEffectDB(t)
	var offset atomic.Int64
	_, w := newInboxes(t, db, "test", inbox.Config{},
		watermill.InboxConfig{Origin: func(*message.Message) (watermill.Origin, bool) {
			return watermill.Origin{Offset: offset.Load()}, true
		}})
	var ranges []string
	f := &feed{}
	runRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "t", f, w.Handle(func(m *message.Message, tx pgx.Tx) error {
			var at string
			err := db.Pool.QueryRow(m.Context(), "select coalesce((select from_offset || '-' || to_offset from "+
				"inbox_progress), 'none')").Scan(&at)
			ranges = append(ranges, at)
			return errors.Join(err, insertEffect(m, tx))
		}))
	})
	for i, at := range []int64{10, 11, 5} {
		offset.Store(at)
		f.send("t", newMessage("", fmt.Sprint(at)))
		await(t, "the ack", func() bool { return f.acked.Load() == int32(i)+1 })
	}
	if want := []string{"10-11", "11-11", "5-6"}; !slices.Equal(ranges, want) {
		t.Errorf("ranges %v, want %v", ranges, want)
	}
}

// TestP9_8_NumbersNeedOrigin: an inbox that deduplicates by number or offset refuses a message without a known place.
func TestP9_8_NumbersNeedOrigin(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	for _, dedup := range []inbox.Dedup{inbox.ByWatermark, inbox.ByOffset} {
		name := fmt.Sprint("numbers", dedup)
		_, w := newInboxes(t, db, name, inbox.Config{Dedup: dedup}, watermill.InboxConfig{})
		if _, err := watermill.Decode(w, "t", newMessage("k", "v")); err == nil ||
			!strings.Contains(err.Error(), "Origin") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, w := newInboxes(t, db, "no time", inbox.Config{Dedup: inbox.ByOffset},
		watermill.InboxConfig{Origin: func(*message.Message) (watermill.Origin, bool) {
			return watermill.Origin{Offset: 1}, true
		}})
	if _, err := watermill.Decode(w, "t", newMessage("k", "v")); err == nil ||
		!strings.Contains(err.Error(), "time of its record") {
		t.Errorf("without a time: %v", err)
	}
}

// TestIDs: the id that identifies a message.
func TestIDs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	_, plain := newInboxes(t, db, "a", inbox.Config{}, watermill.InboxConfig{})
	_, customID := newInboxes(t, db, "b", inbox.Config{}, watermill.InboxConfig{ID: "id"})
	at := watermill.Origin{Partition: 1, Offset: 2, Time: time.UnixMilli(3)}
	_, withOrigin := newInboxes(t, db, "c", inbox.Config{},
		watermill.InboxConfig{Origin: func(*message.Message) (watermill.Origin, bool) { return at, true }})
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	for name, x := range map[string]struct {
		in       *watermill.Inbox
		uuid     string
		metadata message.Metadata
		want     uuid.UUID
	}{
		"the UUID":             {plain, a.String(), nil, a},
		"ce_id wins":           {plain, a.String(), message.Metadata{"ce_id": b.String()}, b},
		"custom metadata":      {customID, a.String(), message.Metadata{"ce_id": b.String(), "id": c.String()}, c},
		"metadata missing":     {customID, a.String(), message.Metadata{"ce_id": b.String()}, b},
		"not a UUID":           {plain, "x", nil, event.ForeignID("t", "x")},
		"not a UUID, a source": {plain, "x", message.Metadata{"ce_source": "s"}, event.ForeignID("s", "x")},
		"place":                {withOrigin, "", nil, event.RecordID("t", 1, 2, time.UnixMilli(3))},
		"UUID before place":    {withOrigin, a.String(), nil, a},
	} {
		m := message.NewMessage(x.uuid, nil)
		m.Metadata = x.metadata
		if e, err := watermill.Decode(x.in, "t", m); err != nil || e.ID != x.want {
			t.Errorf("%s: %v, %v; want %v", name, e.ID, err, x.want)
		}
	}
}
