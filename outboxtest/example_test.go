package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
)

type payment struct {
	ID     string `json:"payment_id"`
	Amount int64  `json:"amount"`
}

func pay(ctx context.Context, tx pgx.Tx, p payment) error {
	if _, err := tx.Exec(ctx, "insert into payment (id, amount) values ($1, $2)", p.ID, p.Amount); err != nil {
		return err
	}
	e, err := event.NewJSON(event.Event{Topic: "payments", Key: p.ID, Type: "PaymentCreated"}, p)
	if err != nil {
		return err
	}
	return outbox.Append(ctx, tx, e)
}

func newLedger(db *pgxpool.Pool, cfg inbox.Config) (inbox.Handler, error) {
	in, err := inbox.New(db, "ledger", cfg)
	if err != nil {
		return nil, err
	}
	return in.Each(inbox.JSON("PaymentCreated", func(ctx context.Context, tx pgx.Tx, _ event.Event, p payment) error {
		_, err := tx.Exec(ctx, "insert into ledger_entry (payment_id, amount) values ($1, $2)", p.ID, p.Amount)
		return err
	})), nil
}

// ledger builds the ledger for a test: it does not retry a failing effect, and logs the error to t.
func ledger(t *testing.T) func(*pgxpool.Pool) (inbox.Handler, error) {
	cfg := inbox.Config{MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	return func(db *pgxpool.Pool) (inbox.Handler, error) { return newLedger(db, cfg) }
}

// TestExamples runs the code of the examples.
func TestExamples(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	db.Exec(t, "create table payment (id text primary key, amount bigint not null)")
	db.Exec(t, "create table ledger_entry (payment_id text not null, amount bigint not null)")
	testPay(t, db.Pool)
	testLedger(t, db.Pool)
	testAllTogether(t, db.Pool)
}

// Checks the events of a transaction without committing it.
func testPay(t *testing.T, db *pgxpool.Pool) {
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if err := pay(t.Context(), tx, payment{ID: "p-1", Amount: 100}); err != nil {
		t.Fatal(err)
	}
	events := outboxtest.Appended(t.Context(), t, tx, "payments")
	if len(events) != 1 || events[0].Key != "p-1" || events[0].Type != "PaymentCreated" {
		t.Errorf("appended %+v", events)
	}
}

// Checks an effect against a crash, a race and redeliveries.
func testLedger(t *testing.T, db *pgxpool.Pool) {
	e, err := event.NewJSON(event.Event{Topic: "payments", Key: "p-2", Type: "PaymentCreated"},
		payment{ID: "p-2", Amount: 100})
	if err != nil {
		t.Fatal(err)
	}
	r, err := outboxtest.Redeliver(t.Context(), t, db, ledger(t), e)
	if err != nil || r.Count(0, inbox.Applied) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	var entries int
	if err := db.QueryRow(t.Context(), "select count(*) from ledger_entry where payment_id = 'p-2'").Scan(
		&entries); err != nil || entries != 1 {
		t.Errorf("%d entries, %v", entries, err)
	}
}

// Runs producer, relay and consumer without Kafka.
func testAllTogether(t *testing.T, db *pgxpool.Pool) {
	var published outboxtest.MemoryPublisher
	r, err := relay.New(db, &published, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- r.Run(ctx) }()
	published.LoseReplies(1) // the first event is published twice
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		return pay(t.Context(), tx, payment{ID: "p-3", Amount: 100})
	}); err != nil {
		t.Fatal(err)
	}
	events, err := published.Await(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-running; err != nil {
		t.Error(err)
	}
	h, err := ledger(t)(db)
	if err != nil {
		t.Fatal(err)
	}
	outcomes, err := outboxtest.Deliver(t.Context(), t, h, events...)
	if err != nil || outcomes[0] != inbox.Applied || outcomes[1] != inbox.Duplicate {
		t.Errorf("%v, %v", outcomes, err)
	}
}

// What the tested code has appended, its delivery to a handler, and Kafka's place.
func Example() {
	test := func(ctx context.Context, t *testing.T, db *pgxpool.Pool, tx pgx.Tx, handler inbox.Handler,
		newHandler func(*pgxpool.Pool) (inbox.Handler, error),
	) {
		events := outboxtest.Appended(ctx, t, tx, "payments") // what tx has appended; then roll tx back
		outcomes, err := outboxtest.Deliver(ctx, t, handler, events...)
		if err != nil || outcomes[0] != inbox.Applied {
			t.Errorf("%v, %v", outcomes, err)
		}

		// The process dies before its COMMIT, two processes get the events at once, all events are delivered again.
		r, err := outboxtest.Redeliver(ctx, t, db, newHandler, events...)
		if err != nil || r.Count(0, inbox.Applied) != 1 { // then look at your own tables
			t.Errorf("%+v, %v", r, err)
		}

		var published outboxtest.MemoryPublisher // in Kafka's place: relay.New(db, &published, relay.Config{})
		published.LoseReplies(1)                 // or Refuse, RefuseTopic, Fail, Delay
		if _, err := published.Await(ctx, 2); err != nil {
			t.Error(err)
		}
	}
	_ = test
}

// Begin, call the tested code, check its events, roll back.
func ExampleAppended() {
	test := func(t *testing.T, db *pgxpool.Pool) {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if err := pay(t.Context(), tx, payment{ID: "p-1", Amount: 100}); err != nil {
			t.Fatal(err)
		}
		events := outboxtest.Appended(t.Context(), t, tx, "payments")
		if len(events) != 1 || events[0].Type != "PaymentCreated" {
			t.Errorf("appended %+v", events)
		}
	}
	_ = test
}

// Redeliver builds a handler for each simulated process. Then the test checks its own tables.
func ExampleRedeliver() {
	test := func(t *testing.T, db *pgxpool.Pool) {
		e, err := event.NewJSON(event.Event{Topic: "payments", Key: "p-1", Type: "PaymentCreated"},
			payment{ID: "p-1", Amount: 100})
		if err != nil {
			t.Fatal(err)
		}
		r, err := outboxtest.Redeliver(t.Context(), t, db, ledger(t), e)
		if err != nil || r.Count(0, inbox.Applied) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	_ = test
}

// A publisher that refuses an event until accept is called.
func ExampleMemoryPublisher() {
	var p outboxtest.MemoryPublisher
	accept := p.Refuse(func(e event.Event) bool { return e.Key == "large" })
	events := []event.Event{{Topic: "t", Key: "small", Type: "T"}, {Topic: "t", Key: "large", Type: "T"}}
	for _, err := range p.Publish(context.Background(), events) {
		var refused *outcome.Refusal
		fmt.Println(err == nil, errors.As(err, &refused))
	}
	accept()
	fmt.Println(p.Publish(context.Background(), events[1:])[0] == nil, len(p.Events()))
	// Output:
	// true false
	// false true
	// true 2
}
