package interop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	outboxes "github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
)

// publishEvents appends events and publishes them to Kafka.
func publishEvents(t *testing.T, topic string) []event.Event {
	t.Helper()
	db := pgtest.New(t, migrations.Outbox)
	at := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	events := []event.Event{
		{
			ID: event.NewID(), Source: "payments", Tenant: "acme", Topic: topic, Key: "acc-1", Type: "PaymentCreated",
			Time: at, ContentType: event.ContentTypeJSON, Payload: []byte(`{"amount":100}`),
			Headers: map[string]string{
				"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
				"own":         "x",
			},
		},
		{ID: event.NewID(), Topic: topic, Type: "T", Time: at, ContentType: "text/plain", Payload: []byte("é\n")},
		{ID: event.NewID(), Topic: topic, Key: "acc-1", Type: "Closed", Time: at},
	}
	if err := pgx.BeginFunc(t.Context(), db.Pool,
		func(tx pgx.Tx) error { return outboxes.Append(t.Context(), tx, events...) }); err != nil {
		t.Fatal(err)
	}
	drain(t, db, newPublisher(t))
	return events
}

// TestCloudEventsSDKReadsOurRecords: CloudEvents' SDK for Go reads each record, in binary mode, as a valid event with
// all attributes.
func TestCloudEventsSDKReadsOurRecords(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 1)
	want := map[string]event.Event{}
	for _, e := range publishEvents(t, topic) {
		want[e.ID.String()] = e
	}
	client, err := sarama.NewConsumer(kafkatest.Brokers(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	records, err := client.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = records.Close() }()
	for range want {
		m := kafka_sarama.NewMessageFromConsumerMessage(<-records.Messages())
		if m.ReadEncoding() != binding.EncodingBinary {
			t.Fatalf("the SDK reads it as %v, want binary mode", m.ReadEncoding())
		}
		got, err := binding.ToEvent(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("the SDK's Validate: %v", err)
		}
		e, known := want[got.ID()]
		delete(want, got.ID())
		source := e.Source
		if source == "" {
			source = event.DefaultSource
		}
		if !known || got.Source() != source || got.Type() != e.Type || !got.Time().Equal(e.Time) ||
			got.DataContentType() != e.ContentType || string(got.Data()) != string(e.Payload) {
			t.Errorf("got %v, want %+v", got, e)
		}
		extensions := got.Extensions()
		if e.Tenant != "" && extensions["tenant"] != e.Tenant || extensions["laneseq"] == nil ||
			extensions["epoch"] == nil || extensions["lane"] == nil {
			t.Errorf("extensions %v", extensions)
		}
	}
}

// TestReadsCloudEventsSDKRecords: events that the SDK writes in both binary and structured mode are applied once. A
// failed event is unchanged when it is released.
func TestReadsCloudEventsSDKRecords(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db, topic := pgtest.New(t, migrations.Inbox), kafkatest.Topic(t, 1)
	db.Exec(t, "create table effect (id uuid not null)")
	var list []cloudevents.Event
	for i, id := range []string{event.NewID().String(), "order-1", event.NewID().String()} {
		e := cloudevents.New()
		e.SetID(id)
		e.SetSource("shop")
		e.SetType("Placed")
		e.SetTime(time.Date(2026, 1, 2, 3, 4, i, 0, time.UTC))
		e.SetExtension("tenant", "acme")
		e.SetSubject(fmt.Sprint("s", i))
		contentType, data := "application/json", any(map[string]int{"n": i})
		if i == 2 {
			contentType, data = "application/octet-stream", []byte{0, 0xff}
		}
		if err := e.SetData(contentType, data); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	config := sarama.NewConfig()
	config.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(kafkatest.Brokers(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = producer.Close() }()
	for _, mode := range []func(context.Context) context.Context{binding.WithForceStructured, binding.WithForceBinary} {
		for _, e := range list {
			m := &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("k" + e.Subject())}
			if err := kafka_sarama.WriteProducerMessage(kafka_sarama.WithSkipKeyMapping(mode(t.Context())),
				binding.ToMessage(&e), m); err != nil {
				t.Fatal(err)
			}
			if _, _, err := producer.SendMessage(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	kafkatest.Produce(t, topic, kafkatest.Record{Key: []byte("plain"), Value: []byte("no id")},
		kafkatest.Record{Value: []byte("no id")})

	var mu sync.Mutex
	fixed := false
	applied := map[uuid.UUID]event.Event{} // an effect may run again
	in, err := inbox.New(db.Pool, "shop", inbox.Config{
		Schema: db.Schema, Window: 24 * time.Hour,
		AllowShortWindow: true, DaysAhead: 1, ReleaseEvery: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if e.Headers["ce_subject"] == "s1" && !fixed {
			return outcome.Terminal("not_yet", errors.New("not yet"))
		}
		applied[e.ID] = e
		_, err := tx.Exec(ctx, "insert into effect (id) values ($1)", e.ID)
		return err
	})
	c, err := consumer.New(h, kafkatest.Brokers(t), []string{topic},
		consumer.Config{Group: topic, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	start(t, c.Run)
	start(t, in.Run)
	pgtest.AwaitSQL(t, db, "select count(*) = 1 from inbox_parked")
	pgtest.AwaitSQL(t, db, "select count(*) = 4 from effect")
	mu.Lock()
	fixed = true
	mu.Unlock()
	o, err := operator.New(db.Pool, db.Schema, "shop", "ada")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.ReleaseKey(t.Context(), "acme", topic, "ks1", admin.Seen{}, "fixed"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, "select count(*) = 5 from effect")
	pgtest.AwaitSQL(t, db, "select from_offset = 8 from inbox_progress union all select false limit 1")
	mu.Lock()
	defer mu.Unlock()
	if n := pgtest.One[int](t, db, "select count(*) from effect"); n != 5 || len(applied) != 5 {
		t.Fatalf("%d effects of %d events", n, len(applied))
	}
	bySubject := map[string]event.Event{}
	for _, e := range applied {
		bySubject[e.Headers["ce_subject"]] = e
	}
	for n, e := range list {
		got := bySubject[e.Subject()]
		if got.Source != "shop" || got.Type != "Placed" ||
			got.Tenant != "acme" || !got.Time.Equal(e.Time()) ||
			got.ContentType != e.DataContentType() || string(got.Payload) != string(e.Data()) || got.Key != "ks"+
			fmt.Sprint(n) {
			t.Errorf("applied %+v of %v", got, e)
		}
	}
}

// findKcat returns the path of kcat, or skips the test. Debian's package is kcat.
func findKcat(t *testing.T) string {
	t.Helper()
	kafkatest.RequireReal(t)
	for _, name := range []string{"kcat", "kafkacat"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("kcat is not installed")
	return ""
}

// TestReadsKcatRecords: records of librdkafka without an id are applied once, identified by their offset, although they
// are read twice.
func TestReadsKcatRecords(t *testing.T) {
	t.Parallel()
	kcat := findKcat(t)
	db, topic := pgtest.New(t, migrations.Inbox), kafkatest.Topic(t, 1)
	cmd := exec.CommandContext(t.Context(), kcat, "-P", "-b", strings.Join(kafkatest.Brokers(t), ","), "-t", topic,
		"-K", ":", "-H", "own=x", "-Z")
	cmd.Stdin = strings.NewReader("a:1\na:1\nb:\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	db.Exec(t, "create table effect (what text)")
	in, err := inbox.New(db.Pool, "plain", inbox.Config{
		Schema: db.Schema, Window: 24 * time.Hour,
		AllowShortWindow: true, DaysAhead: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for group := range 2 {
		var decided distinct
		h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			_, err := tx.Exec(ctx, "insert into effect (what) values ($1)", fmt.Sprintf("%s=%s %v %s", e.Key, e.Payload,
				e.Payload == nil, e.Headers["own"]))
			return err
		})
		c, err := consumer.New(counted{h, &decided}, kafkatest.Brokers(t), []string{topic},
			consumer.Config{Group: fmt.Sprint(topic, group), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		stop := start(t, c.Run)
		await(t, "three records", func() bool { return decided.len() == 3 })
		stop()
		db.Exec(t, "delete from inbox_progress") // otherwise the next group begins there
	}
	if got := pgtest.One[string](t, db,
		"select string_agg(what, ', ' order by what) from effect"); got != "a=1 false x, a=1 false x, b= true x" {
		t.Errorf("effects %q", got)
	}
}

// TestKcatReadsOurRecords: kcat (formerly kafkacat) prints key, headers and payload.
func TestKcatReadsOurRecords(t *testing.T) {
	t.Parallel()
	kcat := findKcat(t)
	topic := kafkatest.Topic(t, 1)
	events := publishEvents(t, topic)
	out, err := exec.CommandContext(t.Context(), kcat, "-C", "-b", strings.Join(kafkatest.Brokers(t), ","), "-t", topic,
		"-o", "beginning", "-e", "-q", "-f", "%k|%S|%h|%s;").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, e := range events {
		size := len(e.Payload)
		if e.Payload == nil {
			size = -1
		}
		found := false
		for line := range strings.SplitSeq(string(out), ";") {
			found = found || strings.HasPrefix(line, fmt.Sprintf("%s|%d|ce_specversion=1.0,ce_id=%s,", e.Key, size,
				e.ID)) && strings.HasSuffix(line, "|"+string(e.Payload))
		}
		if !found {
			t.Errorf("kcat's output has no event %s:\n%s", e.ID, out)
		}
	}
}
