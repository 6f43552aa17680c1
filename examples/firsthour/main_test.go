package main

import (
	"context"
	"log/slog"
	"os"
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

// TestPaymentAppendsItsEvent looks into the transaction, and rolls it back.
func TestPaymentAppendsItsEvent(t *testing.T) {
	tx, err := database(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := record(t.Context(), tx, "payments", Payment{Account: "acc-1", Amount: 1999}); err != nil {
		t.Fatal(err)
	}
	events := outboxtest.Appended(t.Context(), t, tx, "payments")
	if len(events) != 1 || events[0].Key != "acc-1" || events[0].Type != "PaymentMade" {
		t.Errorf("appended %+v", events)
	}
}

// TestBookedOnce delivers an event to a process that dies before its COMMIT, to two at once, and again later.
func TestBookedOnce(t *testing.T) {
	db := database(t)
	if _, err := db.Exec(t.Context(), "insert into account values ('acc-1')"); err != nil {
		t.Fatal(err)
	}
	made := Made{ID: event.NewID().String(), Payment: Payment{Account: "acc-1", Amount: 1999}}
	e, err := event.NewJSON(event.Event{Topic: "payments", Key: "acc-1", Type: "PaymentMade"}, made)
	if err != nil {
		t.Fatal(err)
	}
	ledger := func(db *pgxpool.Pool) (inbox.Handler, error) {
		_, h, err := newLedger(db, inbox.Config{
			MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		return h, err
	}
	r, err := outboxtest.Redeliver(t.Context(), t, db, ledger, e)
	if err != nil || r.Count(0, inbox.Applied) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	var booked int64
	err = db.QueryRow(t.Context(), "select sum(amount) from booking").Scan(&booked)
	if err != nil || booked != 1999 {
		t.Errorf("booked %d, %v", booked, err)
	}
}
