package main

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outboxtest"
)

// database is a new schema with all tables in the Postgres of DATABASE_URL. It is dropped after the test.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	if os.Getenv("DATABASE_URL") == "" {
		t.Fatal("DATABASE_URL names no Postgres: see the Makefile")
	}
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	name := "test_" + strings.ReplaceAll(event.NewID().String(), "-", "")
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := db.Exec(context.WithoutCancel(t.Context()), "drop schema if exists "+name+" cascade"); err != nil {
			t.Error(err)
		}
		db.Close()
	})
	if _, err := db.Exec(t.Context(), "create schema "+name); err != nil {
		t.Fatal(err)
	}
	if err := prepare(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return db
}

// ledger returns the consumer's side over a database.
func ledger(t *testing.T) func(db *pgxpool.Pool) (inbox.Handler, error) {
	return func(db *pgxpool.Pool) (inbox.Handler, error) {
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		in, err := inbox.New(db, "ledger", inbox.Config{MaxAttempts: 1, Logger: log})
		if err != nil {
			return nil, err
		}
		return in.Each(effect), nil
	}
}

// made is the event of a payment.
func made(t *testing.T, account string) event.Event {
	t.Helper()
	p := Payment{ID: event.NewID().String(), Account: account, Amount: 1999}
	e, err := event.NewJSON(event.Event{Topic: "payments", Key: p.Account, Type: "PaymentMade"}, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestBookedOnce delivers an event to a process that dies before its COMMIT, to two at once, and again later; and then
// another event of the same payment.
func TestBookedOnce(t *testing.T) {
	db, e := database(t), made(t, "acc-1")
	for range 2 {
		r, err := outboxtest.Redeliver(t.Context(), t, db, ledger(t), e)
		if err != nil || r.Count(0, inbox.Applied) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		e.ID = event.NewID()
	}
	var entries, sum int64
	err := db.QueryRow(t.Context(), "select count(*), sum(amount) from ledger_entry").Scan(&entries, &sum)
	if err != nil || entries != 1 || sum != 1999 {
		t.Errorf("%d entries, together %d, %v", entries, sum, err)
	}
}

// TestOtherType: an event of another type is parked, and books nothing.
func TestOtherType(t *testing.T) {
	db, e := database(t), made(t, "acc-1")
	h, err := ledger(t)(db)
	if err != nil {
		t.Fatal(err)
	}
	e.Type = "PaymentRefunded"
	outcomes, err := outboxtest.Deliver(t.Context(), t, h, e)
	if err != nil || !slices.Equal(outcomes, []inbox.Outcome{inbox.Parked}) {
		t.Errorf("%v, %v", outcomes, err)
	}
	var entries int64
	if err := db.QueryRow(t.Context(), "select count(*) from ledger_entry").Scan(&entries); err != nil || entries != 0 {
		t.Errorf("%d entries, %v", entries, err)
	}
}

// TestUnknownAccount: the event is parked at once, and the account's later ones wait behind it.
func TestUnknownAccount(t *testing.T) {
	h, err := ledger(t)(database(t))
	if err != nil {
		t.Fatal(err)
	}
	outcomes, err := outboxtest.Deliver(t.Context(), t, h, made(t, "none"), made(t, "none"), made(t, "acc-1"))
	if err != nil || !slices.Equal(outcomes, []inbox.Outcome{inbox.Parked, inbox.Parked, inbox.Applied}) {
		t.Errorf("%v, %v", outcomes, err)
	}
}
