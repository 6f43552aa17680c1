package interop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/watermill"
)

// TestWatermillKafkaBehindTheRelay: behind our relay, watermill-kafka writes the same records as our publisher, in
// order per key. A record that is too large is parked with its key, and no other key waits.
func TestWatermillKafkaBehindTheRelay(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	const keys, each = 30, 20
	db, topic := pgtest.New(t, migrations.Outbox),
		kafkatest.Topic(t, 4, map[string]string{"max.message.bytes": "20000"})
	for i := range each {
		var messages []*message.Message
		for k := range keys {
			messages = append(messages, newMessage(fmt.Sprint("k", k), fmt.Sprint(i)))
		}
		publishTx(t, db, topic, messages...)
	}
	publishTx(t, db, topic, newMessage("large", strings.Repeat("x", 30_000)), newMessage("large", "behind"))
	drain(t, db, newWatermillPublisher(t))
	if got := pgtest.One[string](t, db, "select string_agg(key || ' ' || length(payload), ', ' order by id) from "+
		"outbox_parked"); got != "large 30000, large 6" {
		t.Errorf("parked %q", got)
	}
	next, partition := map[string]int{}, map[string]int32{}
	for _, r := range kafkatest.ReadAll(t, topic) {
		key := string(r.Key)
		if string(r.Value) != fmt.Sprint(next[key]) {
			t.Fatalf("key %s: message %s, want %d", key, r.Value, next[key])
		}
		if next[key] > 0 && partition[key] != r.Partition {
			t.Errorf("key %s is in two partitions", key)
		}
		next[key], partition[key] = next[key]+1, r.Partition
		headers := make([]event.Header, len(r.Headers))
		for i, h := range r.Headers {
			headers[i] = event.Header(h)
		}
		e := event.Decode(&event.Record{Topic: topic, Key: r.Key, Value: r.Value, Headers: headers}, "")
		if e.ID.String() != r.Get(watermill.MetadataUUID) || e.Type != watermill.DefaultType ||
			e.Position.Epoch == "" || e.Position.Seq == 0 || e.Key != key {
			t.Fatalf("event %+v of %v", e, r.Headers)
		}
	}
	if len(next) != keys {
		t.Errorf("%d keys", len(next))
	}
}

// TestRouterOverWatermillKafka: a router that reads through watermill-kafka applies records of our relay and of other
// producers once, although it reads the topic twice.
func TestRouterOverWatermillKafka(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	const n = 200
	db, topic := pgtest.New(t, migrations.Outbox, migrations.Inbox), kafkatest.Topic(t, 4)
	db.Exec(t, "create table effect (key text, what text)")
	for i := range n {
		publishTx(t, db, topic, newMessage(fmt.Sprint("k", i%10), fmt.Sprint(i)))
	}
	drain(t, db, newPublisher(t))
	kafkatest.Produce(t, topic, kafkatest.Record{Key: []byte("plain"), Value: []byte("no headers at all")})
	w := newInbox(t, db, "ledger", inbox.Config{})
	var runs atomic.Int32
	handle := w.Handle(func(m *message.Message, tx pgx.Tx) error {
		runs.Add(1)
		e, _ := watermill.Event(m.Context())
		_, err := tx.Exec(m.Context(), "insert into effect (key, what) values ($1, $2)", e.Key, string(m.Payload))
		return err
	})
	for group := range 2 {
		var handled distinct
		stop := startRouter(t, func(r *message.Router) {
			r.AddConsumerHandler("ledger", topic, subscriber(t, fmt.Sprint(topic, group)),
				func(m *message.Message) error {
					err := handle(m)
					if o, _ := origin(m); err == nil {
						handled.add([2]int64{int64(o.Partition), o.Offset})
					}
					return err
				})
		})
		await(t, "every message", func() bool { return handled.len() == n+1 })
		stop()
	}
	if rows := pgtest.One[int](t, db, "select count(*) from effect"); rows != n+1 || runs.Load() != n+1 {
		t.Errorf("%d effects of %d runs, want %d", rows, runs.Load(), n+1)
	}
	if key := pgtest.One[string](t, db, "select key from effect where what like 'no headers%'"); key != "plain" {
		t.Errorf("key %q", key)
	}
	// Our own consumer with the same consumer name: it finds all ids in the inbox.
	in, err := inbox.New(db.Pool, "ledger", inbox.Config{
		Schema: db.Schema, Window: 24 * time.Hour,
		AllowShortWindow: true, DaysAhead: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	var seen distinct
	h := in.Each(func(context.Context, pgx.Tx, event.Event) error { runs.Add(1); return nil })
	c, err := consumer.New(counted{h, &seen}, kafkatest.Brokers(t), []string{topic},
		consumer.Config{Group: topic + "ours", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, c.Run)
	await(t, "every event", func() bool { return seen.len() == n+1 })
	stop()
	if runs.Load() != n+1 {
		t.Errorf("%d runs: our consumer uses other ids", runs.Load())
	}
}

// distinct is a set of things that may come again: a group whose member was starved of its heartbeats reads records
// twice.
type distinct struct {
	mu  sync.Mutex
	all map[any]bool
}

func (d *distinct) add(one any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[any]bool{}
	}
	d.all[one] = true
}

func (d *distinct) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all)
}

// counted notes the ids of the events that a handler has decided.
type counted struct {
	inbox.Handler
	ids *distinct
}

func (c counted) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	out, err := c.Handler.Handle(ctx, events)
	for i, o := range out {
		if o != inbox.Undecided {
			c.ids.add(events[i].ID)
		}
	}
	return out, err
}

func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	pgtest.Await(t, what, func() (bool, error) { return cond(), nil })
}

// TestBurnedKey: a handler fails the first time. Watermill's Deduplicator drops the redelivered message as a duplicate,
// and its effect is lost. The inbox runs it again.
func TestBurnedKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	db.Exec(t, "create table effect (what text)")
	// Halt after one attempt, so that the message is nacked: by default the inbox would retry by itself.
	w := newInbox(t, db, "ledger", inbox.Config{MaxAttempts: 1, OnFailure: inbox.Halt})
	dedup := &middleware.Deduplicator{}
	for name, c := range map[string]struct {
		middleware message.HandlerMiddleware
		effects    int
	}{"deduplicator": {dedup.Middleware, 0}, "inbox": {w.Middleware, 1}} {
		channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
		var runs atomic.Int32
		stop := startRouter(t, func(r *message.Router) {
			r.AddConsumerHandler(name, name, channel, func(m *message.Message) error {
				if runs.Add(1) == 1 {
					return errors.New("the first attempt fails")
				}
				if name == "deduplicator" {
					_, err := db.Pool.Exec(m.Context(), "insert into effect (what) values ($1)", name)
					return err
				}
				tx, err := watermill.Tx(m.Context())
				if err != nil {
					return err
				}
				_, err = tx.Exec(m.Context(), "insert into effect (what) values ($1)", name)
				return err
			}).AddMiddleware(c.middleware)
		})
		if err := channel.Publish(name, newMessage("k", "v")); err != nil { // until it was acknowledged
			t.Fatal(err)
		}
		stop()
		if n := pgtest.One[int](t, db, "select count(*) from effect where what = $1", name); n != c.effects ||
			runs.Load() != int32(c.effects)+1 {
			t.Errorf("%s: %d effects after %d runs, want %d", name, n, runs.Load(), c.effects)
		}
	}
}

// TestWatermillSQLBehindTheRelay publishes with watermill-sql to a table of another database.
func TestWatermillSQLBehindTheRelay(t *testing.T) {
	t.Parallel()
	from, other := pgtest.New(t, migrations.Outbox), pgtest.New(t)
	theirs, err := wsql.NewPublisher(wsql.BeginnerFromPgx(other.Pool),
		wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := watermill.NewPublisher(theirs, watermill.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m := newMessage("k", `{"v":1}`)
	m.Metadata.Set("correlation_id", "c")
	publishTx(t, from, "orders", m)
	drain(t, from, to)
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	sub, err := wsql.NewSubscriber(wsql.BeginnerFromPgx(other.Pool), wsql.SubscriberConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true, PollInterval: 10 * time.Millisecond,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	got := <-messages
	got.Ack()
	if got.UUID != m.UUID || string(got.Payload) != `{"v": 1}` && string(got.Payload) != `{"v":1}` ||
		got.Metadata["correlation_id"] != "c" || got.Metadata["partition_key"] != "k" {
		t.Errorf("got %+v", got)
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
}
