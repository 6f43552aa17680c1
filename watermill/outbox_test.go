package watermill_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/watermill"
)

// newMessage makes a message of one key.
func newMessage(key, payload string) *message.Message {
	m := message.NewMessage(event.NewID().String(), []byte(payload))
	m.Metadata.Set(watermill.MetadataKey, key)
	return m
}

// publishTx publishes messages in a transaction of their own.
func publishTx(t testing.TB, db *pgtest.DB, topic string, messages ...*message.Message) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		out, err := watermill.NewOutbox(tx, watermill.OutboxConfig{})
		if err != nil {
			return err
		}
		return out.Publish(topic, messages...)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// drain runs a relay over to until the outbox is empty.
func drain(t testing.TB, db *pgtest.DB, to relay.Publisher) {
	t.Helper()
	r, err := relay.New(db.Pool, to, relay.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	pgtest.AwaitSQL(t, db, "select not exists (select from outbox_event)")
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestPublishedIfCommitted: with pgx and with database/sql, committed messages reach a subscriber unchanged, and those
// that were rolled back do not.
func TestPublishedIfCommitted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	pool, err := sql.Open("pgx", db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	want := map[string]*message.Message{}
	for i := range 8 {
		m := newMessage(fmt.Sprint("k", i%2), fmt.Sprint(i))
		m.Metadata.Set("i", fmt.Sprint(i))
		if i%4 < 2 {
			want[m.UUID] = m
		}
		if i < 4 {
			tx, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			out, err := watermill.NewOutbox(tx, watermill.OutboxConfig{})
			publishAndEnd(t, err, out, m, func() error {
				if i%4 < 2 {
					return tx.Commit(t.Context())
				}
				return tx.Rollback(t.Context())
			})
			continue
		}
		tx, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		out, err := watermill.NewOutboxSQL(tx, watermill.OutboxConfig{})
		publishAndEnd(t, err, out, m, func() error {
			if i%4 < 2 {
				return tx.Commit()
			}
			return tx.Rollback()
		})
	}
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true, PreserveContext: true}, nil)
	to := newPublisher(t, channel, watermill.PublisherConfig{})
	defer func() { _ = to.Close() }()
	drain(t, db, to)
	messages, err := channel.Subscribe(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	for range want {
		got := <-messages
		sent := want[got.UUID]
		if sent == nil || string(got.Payload) != string(sent.Payload) || got.Metadata["i"] != sent.Metadata["i"] ||
			got.Metadata["ce_id"] != sent.UUID || got.Context().Err() != nil {
			t.Errorf("got %+v, want %+v", got, sent)
		}
		delete(want, got.UUID)
		got.Ack()
	}
}

// publishAndEnd publishes m, checks Close, and ends the transaction.
func publishAndEnd(t testing.TB, err error, out *watermill.Outbox, m *message.Message, end func() error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err = errors.Join(out.Publish("t", m), out.Close()); err != nil {
		t.Fatal(err)
	}
	if err = out.Publish("t", m); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("published after Close: %v", err)
	}
	if err = end(); err != nil {
		t.Fatal(err)
	}
}

func TestNoTransaction(t *testing.T) {
	t.Parallel()
	if _, err := watermill.NewOutbox(nil, watermill.OutboxConfig{}); err == nil {
		t.Error("a nil transaction is accepted")
	}
	if _, err := watermill.NewOutboxSQL(nil, watermill.OutboxConfig{}); err == nil {
		t.Error("a nil transaction is accepted")
	}
	if _, err := watermill.NewPublisher(nil, watermill.PublisherConfig{}); err == nil {
		t.Error("a nil publisher is accepted")
	}
	if err := watermill.NewOutboxFromContext(watermill.OutboxConfig{}).Publish("t", newMessage("k", "v")); err == nil ||
		!strings.Contains(err.Error(), "WithTx") {
		t.Error(err)
	}
	if _, err := watermill.Tx(t.Context()); err == nil {
		t.Error("a context without a transaction has one")
	}
}

// TestTransactionsAndTracesOfMessages: each message is appended in the transaction and with the trace of its context;
// the error has the index of the refused message.
func TestTransactionsAndTracesOfMessages(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	var txs [2]pgx.Tx
	for i := range txs {
		var err error
		if txs[i], err = db.Pool.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	out := watermill.NewOutboxFromContext(watermill.OutboxConfig{})
	var messages []*message.Message
	for i, c := range []struct {
		tx    int
		trace byte
	}{{0, 1}, {0, 1}, {0, 2}, {1, 2}, {1, 0}} {
		m := newMessage("k", fmt.Sprint(i))
		ctx := watermill.WithTx(t.Context(), txs[c.tx])
		if c.trace > 0 {
			ctx = trace.ContextWithSpanContext(ctx,
				trace.NewSpanContext(trace.SpanContextConfig{TraceID: [16]byte{c.trace}, SpanID: [8]byte{c.trace}}))
		}
		m.SetContext(ctx)
		messages = append(messages, m)
	}
	if err := out.Publish("t", messages...); err != nil {
		t.Fatal(err)
	}
	bad := newMessage("k", "bad")
	bad.SetContext(messages[4].Context())
	bad.Metadata.Set("h", "\x00")
	var refused *outbox.EventError
	if err := out.Publish("t", messages[0].Copy(), bad); err == nil {
		t.Error("a message without a transaction in its context is published")
	}
	first := newMessage("k", "5")
	first.SetContext(messages[0].Context())
	if err := out.Publish("t", first, bad); !errors.As(err, &refused) || refused.Index != 1 {
		t.Errorf("%v", err)
	}
	if err := errors.Join(txs[0].Commit(t.Context()), txs[1].Rollback(t.Context())); err != nil {
		t.Fatal(err)
	}
	got := pgtest.One[string](t, db,
		`select string_agg(convert_from(payload, 'UTF8') || substr(headers->>'traceparent', 4, 2), ' ' order by id)
			from outbox_event`)
	if got != "001 101 202 501" {
		t.Errorf("appended %q", got)
	}
}

// TestRelayOverUnreliablePublisher: every message is published, and the first occurrences of a key's messages in order.
func TestRelayOverUnreliablePublisher(t *testing.T) {
	t.Parallel()
	const keys, each = 40, 25
	db := pgtest.New(t, migrations.Outbox)
	for i := range each {
		var batch []*message.Message
		for k := range keys {
			batch = append(batch, newMessage(fmt.Sprint("k", k), fmt.Sprint(i)))
		}
		publishTx(t, db, "t", batch...)
	}
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(1, 2))
	var published []*message.Message
	b := &broker{do: func(m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		outcome := rnd.IntN(50)
		if outcome != 0 { // 0: not written
			published = append(published, m)
		}
		if outcome < 2 { // 1: written, and the answer is lost
			return errors.New("no answer")
		}
		return nil
	}}
	drain(t, db, newPublisher(t, b, watermill.PublisherConfig{}))
	checkOrder(t, published, keys, each)
	if len(published) == keys*each {
		t.Error("no message was published twice: no answer was lost")
	}
}

// checkOrder checks that each key's payloads first occur as 0, 1, 2, ...
func checkOrder(t testing.TB, published []*message.Message, keys, each int) {
	t.Helper()
	next, seen := map[string]int{}, map[string]bool{}
	for _, m := range published {
		key := m.Metadata[watermill.MetadataKey]
		if seen[m.UUID] {
			continue
		}
		seen[m.UUID] = true
		if string(m.Payload) != fmt.Sprint(next[key]) {
			t.Fatalf("key %s: %s first occurs before %d", key, m.Payload, next[key])
		}
		next[key]++
	}
	for k := range keys {
		if n := next[fmt.Sprint("k", k)]; n != each {
			t.Errorf("key k%d: %d messages, want %d", k, n, each)
		}
	}
}

// TestRefusedMessageParksItsKey: the relay parks a message for whose error PublisherConfig.Refused returns
// RecordRefused.
func TestRefusedMessageParksItsKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	publishTx(t, db, "t", newMessage("a", "1"), newMessage("a", "bad"), newMessage("a", "2"), newMessage("b", "3"))
	tooLarge := errors.New("too large")
	b := &broker{do: func(m *message.Message) error {
		if string(m.Payload) == "bad" {
			return tooLarge
		}
		return nil
	}}
	drain(t, db, newPublisher(t, b, watermill.PublisherConfig{Refused: func(_ string, err error) watermill.Meaning {
		if errors.Is(err, tooLarge) {
			return watermill.RecordRefused
		}
		return watermill.NotRefused
	}}))
	if got := pgtest.One[string](t, db,
		`select string_agg(convert_from(payload, 'UTF8'), ' ' order by id) from outbox_parked`); got != "bad 2" {
		t.Errorf("parked %q", got)
	}
	if len(b.sent) != 2 || b.payloads("1") != "1" || b.payloads("3") != "3" {
		t.Errorf("sent %v", b.sent)
	}
}

// TestRecordIsReadableByWatermillKafka: a record that the relay writes has the headers that watermill-kafka reads: the
// UUID and all metadata.
func TestRecordIsReadableByWatermillKafka(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t, migrations.Outbox), kafkatest.Topic(t, 2)
	m := newMessage("k", "v")
	m.UUID = "01J0000000000000000000ULID"
	m.Metadata.Set("correlation_id", "c")
	m.Metadata.Set("name", "Placed")
	publishTx(t, db, topic, m)
	to, err := publisher.NewKafka(kafkatest.Brokers(t), publisher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = to.Close() }()
	drain(t, db, to)
	records := kafkatest.ReadAll(t, topic)
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	r := records[0]
	for name, want := range map[string]string{
		watermill.MetadataUUID: m.UUID, "correlation_id": "c", "name": "Placed", "partition_key": "k",
		"ce_type": "Placed",
		"ce_id":   event.ForeignID(topic, m.UUID).String(),
	} {
		if got := r.Get(name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if string(r.Key) != "k" || string(r.Value) != "v" {
		t.Errorf("record %q: %q", r.Key, r.Value)
	}
	names := map[string]int{}
	for _, h := range r.Headers {
		if names[h.Key]++; names[h.Key] > 1 {
			t.Errorf("header %s stands twice", h.Key)
		}
	}
	if _, err := uuid.Parse(r.Get("ce_id")); err != nil ||
		slices.ContainsFunc(r.Headers, func(h kafkatest.Header) bool { return h.Key == "" }) {
		t.Error(err, r.Headers)
	}
}
