// Package assistants has the code of docs/assistants.md: mistakes, what goes wrong with each, and the right forms.
package assistants

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outboxtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type charges int

func (c *charges) Charge(context.Context, Payment) error { *c++; return nil }

var provider charges

func tables(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	if err := migrations.Up(t.Context(), db.Pool.Config().ConnConfig, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `create table payment (id text, amount bigint); create table entry (payment text, amount bigint);
		create table ledger (payment text unique, amount bigint);
		create table charge_due (payment text unique, amount bigint);
		create table account (id text primary key, balance bigint); insert into account values ('acc-1', 0)`)
	return db
}

// made is an event of p, as a relay publishes it.
func made(t *testing.T, p Payment, e event.Event) event.Event {
	t.Helper()
	e, err := event.NewJSON(e, p)
	if err != nil {
		t.Fatal(err)
	}
	if e.ID == [16]byte{} {
		e.ID = event.NewID()
	}
	return e
}

// deliver delivers events to an effect of a consumer that began 60 days ago, and returns the outcomes.
func deliver(t *testing.T, db *pgtest.DB, do inbox.Effect, events ...event.Event) []inbox.Outcome {
	t.Helper()
	name := event.NewID().String()
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days)
		values ($1, current_date - 60, 14)`, name)
	in, err := inbox.New(db.Pool, name, inbox.Config{MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	outcomes, err := outboxtest.Deliver(t.Context(), t, in.Each(do), events...)
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

func payment() Payment {
	return Payment{ID: event.NewID().String(), Account: "acc-1", Email: "ann@example.com", Amount: 1999}
}

// is fails unless a statement finds what is wanted.
func is(t *testing.T, db *pgtest.DB, what, sql string, want int) {
	t.Helper()
	if got := pgtest.One[int](t, db, sql); got != want {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

func TestAppendInTheTransaction(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(context.Context, *pgxpool.Pool, Payment, event.Event) error{
		"wrong": payWrong, "right": pay,
	} {
		db := tables(t)
		if err := do(t.Context(), db.Pool, payment(), event.Event{}); err == nil { // a crash before the event
			t.Error("an event without a topic was appended")
		}
		is(t, db, name, "select count(*)::int from payment", map[string]int{"wrong": 1, "right": 0}[name])
	}
}

// TestAppendUnderTheLock: of two transactions on an account the one that has it second also comes second in the outbox.
func TestAppendUnderTheLock(t *testing.T) {
	t.Parallel()
	for want, do := range map[string]func(context.Context, pgx.Tx, Payment, event.Event) error{
		"second first": setWrong, "first second": set,
	} {
		db := tables(t)
		first, second := db.Begin(t), db.Begin(t)
		if _, err := first.Exec(t.Context(), update, "acc-1", 1); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			err := do(t.Context(), second, payment(), event.Event{Topic: "payments", Key: "acc-1", Type: "second"})
			done <- errors.Join(err, second.Commit(t.Context()))
		}()
		pgtest.AwaitBlocked(t, db, second.Conn().PgConn().PID())
		err := outbox.Append(t.Context(), first, event.Event{Topic: "payments", Key: "acc-1", Type: "first"})
		if err = errors.Join(err, first.Commit(t.Context()), <-done); err != nil {
			t.Fatal(err)
		}
		if got := pgtest.One[string](t, db, "select string_agg(type, ' ' order by id) from outbox_event"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestNameTheType(t *testing.T) {
	t.Parallel()
	db := tables(t)
	e := made(t, payment(), event.Event{Topic: "payments", Key: "acc-1", Type: "PaymentRefused"})
	if got := deliver(t, db, anyTypeWrong, e); got[0] != inbox.Applied {
		t.Errorf("wrong: %v", got)
	}
	is(t, db, "wrong: booked", "select count(*)::int from ledger", 1)
	if got := deliver(t, db, effect, e); got[0] != inbox.Parked {
		t.Errorf("right: %v", got)
	}
	e.Type = "PaymentSeen"
	if got := deliver(t, db, effect, e); got[0] != inbox.Skipped {
		t.Errorf("right: %v", got)
	}
}

func TestDistinctNames(t *testing.T) {
	t.Parallel()
	cause := made(t, payment(), event.Event{Topic: "payments", Type: "PaymentMade"})
	if e := entriesWrong(cause, cause, cause); e[0].ID != e[1].ID {
		t.Error("wrong: two ids")
	}
	if e := entries(cause, cause, cause); e[0].ID == e[1].ID {
		t.Error("right: one id")
	}
}

func TestBusinessKey(t *testing.T) {
	t.Parallel()
	db, p := tables(t), payment()
	e := event.Event{Topic: "payments", Key: "acc-1", Type: "PaymentMade"}
	deliver(t, db, inbox.JSON("PaymentMade", bookWrong), made(t, p, e), made(t, p, e))
	is(t, db, "wrong", "select count(*)::int from entry", 2)
	deliver(t, db, inbox.JSON("PaymentMade", book), made(t, p, e), made(t, p, e))
	is(t, db, "right", "select count(*)::int from ledger", 1)
}

// redeliver tests an effect as rule 10 says.
func redeliver(t *testing.T, db *pgtest.DB, do inbox.Effect) {
	t.Helper()
	name := event.NewID().String()
	test(t, db.Pool, func(pool *pgxpool.Pool) (inbox.Handler, error) {
		in, err := inbox.New(pool, name, inbox.Config{MaxAttempts: 1})
		if err != nil {
			return nil, err
		}
		return in.Each(do), nil
	}, made(t, payment(), event.Event{Topic: "payments", Key: "acc-1", Type: "PaymentMade"}))
}

func TestNoCallsInAnEffect(t *testing.T) {
	t.Parallel()
	db := tables(t)
	redeliver(t, db, inbox.JSON("PaymentMade", chargeWrong))
	if provider < 2 {
		t.Errorf("wrong: charged %d times", provider)
	}
	redeliver(t, db, inbox.JSON("PaymentMade", charge))
	is(t, db, "right", "select count(*)::int from charge_due", 1)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	db, p := tables(t), payment()
	p.Account = ""
	e := made(t, p, event.Event{Topic: "payments", Type: "PaymentMade"})
	if got := deliver(t, db, inbox.JSON("PaymentMade", refuseWrong), e); got[0] != inbox.Applied {
		t.Errorf("wrong: %v", got)
	}
	if got := deliver(t, db, inbox.JSON("PaymentMade", refuse), e); got[0] != inbox.Parked {
		t.Errorf("right: %v", got)
	}
	is(t, db, "booked", "select count(*)::int from ledger", 0)
}

func TestKeysArePersonal(t *testing.T) {
	t.Parallel()
	db, p := tables(t), payment()
	fails := func(context.Context, pgx.Tx, event.Event) error { return errors.New("fails") }
	deliver(t, db, fails, made(t, p, keyWrong(p)), made(t, p, key(p)))
	got := pgtest.One[string](t, db,
		"select string_agg(convert_from(key, 'UTF8'), ' ' order by key) from inbox_parked_key")
	if got != "acc-1 "+p.Email || strings.Contains(key(p).Key, "@") {
		t.Errorf("operators see the keys %s", got)
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	db, p := tables(t), payment()
	p.At = time.Now().AddDate(0, -1, 0)
	got := deliver(t, db, effect, made(t, p, importWrong(p)), made(t, p, importRight(p)))
	if got[0] != inbox.Quarantined || got[1] != inbox.Applied {
		t.Errorf("wrong and right: %v", got)
	}
}

// TestOfATest: what keeps its state in memory passes the wrong test.
func TestOfATest(t *testing.T) {
	t.Parallel()
	db, runs := tables(t), 0
	remembers := func(context.Context, pgx.Tx, event.Event) error { runs++; return nil }
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return testWrong(t.Context(), tx, remembers, event.Event{})
	})
	if err != nil || runs != 1 {
		t.Errorf("wrong: %d runs, %v", runs, err)
	}
	runs = 0
	if redeliver(t, db, remembers); runs < 2 {
		t.Errorf("right: %d runs", runs)
	}
}
