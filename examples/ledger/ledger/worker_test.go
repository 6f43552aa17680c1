package ledger_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/worker/figures"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
)

var quiet = slog.New(slog.DiscardHandler)

// startWorker starts a worker. stop fails the test if the worker does not drain cleanly.
func startWorker(t *testing.T, cfg ledger.Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ledger.Run(ctx, cfg) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the worker failed: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func publish(t *testing.T, events ...event.Event) {
	t.Helper()
	for i := range events {
		events[i].Position.Epoch = uuid.NewString() + ".1" // a relay's, so that they keep their ids
	}
	k, err := publisher.NewKafka(kafkatest.Brokers(t), publisher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for i, err := range k.Publish(t.Context(), events) {
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
}

// config has a session that does not end on a slow machine: a member that the group has lost reads its events again.
func config(t *testing.T, db *pgtest.DB, topic string) ledger.Config {
	return ledger.Config{
		DB: pgtest.Pool(t, db.AdminURL), Schema: db.Schema, Brokers: kafkatest.Brokers(t),
		Topic: topic, Group: topic, Logger: quiet, Consumer: consumer.Config{SessionTimeout: time.Minute},
		Figures: figures.Prometheus,
	}
}

func TestBooksRedeliveredEventsOnce(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t), kafkatest.Topic(t, 3)
	var events []event.Event
	for i := range 50 {
		e := paymentEvent(t, newPayment(int64(i+1)))
		e.Topic = topic
		events = append(events, e)
	}
	publish(t, append(append([]event.Event{}, events...), events[:20]...)...)
	cfg := config(t, db, topic)
	stop := startWorker(t, cfg)
	f := &fixture{DB: db}
	pgtest.AwaitSQL(t, db, "select to_regclass('ledger_entry') is not null")
	pgtest.AwaitSQL(t, db, "select count(*) = 100 from ledger_entry")
	stop()
	f.check(t, 50)

	// Another group goes on where the database is. What comes again, it knows.
	publish(t, append(append([]event.Event{}, events...), events[:20]...)...)
	seen := make(chan inbox.HandledInfo, 100)
	cfg.Group += "-again"
	cfg.SkipMigrate = true
	cfg.Inbox.Observer.Handled = func(i inbox.HandledInfo) { seen <- i }
	stop = startWorker(t, cfg)
	for n := 0; n < 70; {
		i := <-seen
		n += i.Applied + i.Duplicate
		if i.Applied > 0 {
			t.Errorf("%d events were applied again", i.Applied)
		}
	}
	stop()
	f.check(t, 50)
}

func TestAmountMismatchHaltsThePartition(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t), kafkatest.Topic(t, 1)
	p := newPayment(100)
	first, wrong, behind := paymentEvent(t, p), paymentEvent(t, p), paymentEvent(t, newPayment(1))
	p.Amount = 101
	wrong = paymentEvent(t, p)
	for _, e := range []*event.Event{&first, &wrong, &behind} {
		e.Topic = topic
	}
	cfg := config(t, db, topic)
	cfg.Inbox.OnFailure = inbox.Halt
	halted := make(chan consumer.Halt, 1)
	cfg.Consumer.Observer.Halted = func(h consumer.Halt) { halted <- h }
	var err error
	if cfg.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	startWorker(t, cfg)
	publish(t, first, wrong, behind)
	h := <-halted
	if h.EventID != wrong.ID || h.Offset != 1 ||
		!strings.Contains(h.Err.Error(), "amount 100, and the event says 101") {
		t.Errorf("halted at %s, offset %d: %v", h.EventID, h.Offset, h.Err)
	}
	(&fixture{DB: db}).check(t, 1)
	if n := pgtest.One[int](t, db, "select count(*) from inbox_message where message_id = any($1)",
		[]string{wrong.ID.String(), behind.ID.String()}); n != 0 {
		t.Errorf("%d ids behind the halt are in the inbox", n)
	}
	pgtest.Await(t, "the halt in /healthz/moving", func() (bool, error) {
		status, body := get(t, "http://"+cfg.Listener.Addr().String()+"/healthz/moving")
		return status == http.StatusServiceUnavailable && strings.Contains(body, wrong.ID.String()), nil
	})
	if status, _ := get(t, "http://"+cfg.Listener.Addr().String()+"/readyz"); status != http.StatusOK {
		t.Errorf("/readyz is %d", status)
	}
	if _, body := get(t, "http://"+cfg.Listener.Addr().String()+"/metrics"); !strings.Contains(body,
		`effectonce_consumer_halted_partitions{consumer="ledger"} 1`) ||
		!strings.Contains(body, `effectonce_inbox_events_total{consumer="ledger",outcome="applied"} 1`) {
		t.Errorf("metrics:\n%s", body)
	}
}

// TestStalledWorkerMetrics: the effect waits for a lock, and the lag grows.
func TestStalledWorkerMetrics(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t), kafkatest.Topic(t, 1)
	cfg := config(t, db, topic)
	cfg.Consumer.ResumeEvery = 20 * time.Millisecond
	var err error
	if cfg.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	startWorker(t, cfg)
	metric := func(name string) (v float64, found bool) {
		_, body := get(t, "http://"+cfg.Listener.Addr().String()+"/metrics")
		m := regexp.MustCompile(`(?m)^effectonce_consumer_` + name + `\{[^}]*\} (\S+)$`).FindStringSubmatch(body)
		if m == nil {
			return 0, false
		}
		v, err := strconv.ParseFloat(m[1], 64)
		return v, err == nil
	}
	await := func(what string, is func(v float64) bool, names ...string) {
		t.Helper()
		for _, name := range names {
			pgtest.Await(t, what+": "+name, func() (bool, error) {
				v, found := metric(name)
				return found && is(v), nil
			})
		}
	}
	zero := func(v float64) bool { return v == 0 }
	await("idle", zero, "lag", "stalled_seconds", "handling_seconds")
	ctx := t.Context()
	tx, err := db.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "lock table ledger_entry"); err != nil {
		t.Fatal(err)
	}
	for lag := 1.0; lag <= 4; lag++ {
		e := paymentEvent(t, newPayment(100))
		e.Topic = topic
		publish(t, e)
		await("locked", func(v float64) bool { return v == lag }, "lag")
	}
	await("locked", func(v float64) bool { return v > 0 }, "stalled_seconds", "handling_seconds")
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	await("unlocked", zero, "lag", "stalled_seconds", "handling_seconds")
	(&fixture{DB: db}).check(t, 4)
}

// TestForeignEventIsBookedOnce uses records as Debezium's outbox router writes them, with the id in the header "id" and
// no CloudEvents headers.
func TestForeignEventIsBookedOnce(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t), kafkatest.Topic(t, 1)
	p := newPayment(100)
	foreign := func(id string, p contract.PaymentCreated) kafkatest.Record {
		return kafkatest.Record{
			Key: []byte(p.AccountID), Value: paymentEvent(t, p).Payload,
			Headers: []kafkatest.Header{{Key: "id", Value: []byte(id)}},
		}
	}
	id := event.NewID().String()
	kafkatest.Produce(t, topic, foreign(id, p), foreign(id, p), foreign(event.NewID().String(), newPayment(1)))
	cfg := config(t, db, topic)
	cfg.IDHeader = "id"
	seen := make(chan inbox.HandledInfo, 10)
	cfg.Inbox.Observer.Handled = func(i inbox.HandledInfo) { seen <- i }
	stop := startWorker(t, cfg)
	applied, duplicates := 0, 0
	for applied+duplicates < 3 {
		i := <-seen
		applied, duplicates = applied+i.Applied, duplicates+i.Duplicate
	}
	stop()
	if applied != 2 || duplicates != 1 {
		t.Errorf("%d applied, %d duplicates: want 2 and 1", applied, duplicates)
	}
	(&fixture{DB: db}).check(t, 2)
	if n := pgtest.One[int](t, db, "select count(*) from ledger_entry where message_id = $1", id); n != 2 {
		t.Errorf("%d rows name Debezium's id, want 2", n)
	}
}

func TestMissingTablesError(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	cfg := ledger.Config{
		DB: pgtest.Pool(t, db.AdminURL), Schema: db.Schema, Brokers: []string{"127.0.0.1:1"},
		SkipMigrate: true, Logger: quiet,
	}
	if err := ledger.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "relay migrate") {
		t.Errorf("error %v", err)
	}
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}
