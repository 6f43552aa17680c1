package assistants

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/outcome"
)

// The code of docs/assistants.md: of each rule the mistake, and the right form.

// Payment is the payload of PaymentMade.
type Payment struct {
	ID      string    `json:"id"`
	Account string    `json:"account"`
	Email   string    `json:"email"`
	Amount  int64     `json:"amount"`
	At      time.Time `json:"at"`
}

const (
	insert = "insert into payment values ($1, $2)"
	update = "update account set balance = balance + $2 where id = $1"
)

// Wrong: a crash between the two transactions loses the event.
func payWrong(ctx context.Context, db *pgxpool.Pool, p Payment, e event.Event) error {
	if _, err := db.Exec(ctx, insert, p.ID, p.Amount); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, e) })
}

func pay(ctx context.Context, db *pgxpool.Pool, p Payment, e event.Event) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insert, p.ID, p.Amount); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, e)
	})
}

// Wrong: it gets its place in the order before its turn on the account, and consumers see a later balance first.
func setWrong(ctx context.Context, tx pgx.Tx, p Payment, e event.Event) error {
	if err := outbox.Append(ctx, tx, e); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, update, p.Account, p.Amount)
	return err
}

func set(ctx context.Context, tx pgx.Tx, p Payment, e event.Event) error {
	if _, err := tx.Exec(ctx, update, p.Account, p.Amount); err != nil {
		return err
	}
	return outbox.Append(ctx, tx, e)
}

// Wrong: a PaymentRefused parses as well, and is booked.
func anyTypeWrong(ctx context.Context, tx pgx.Tx, e event.Event) error {
	p, err := event.DecodeJSON[Payment](e)
	if err != nil {
		return err
	}
	return book(ctx, tx, e, p)
}

var effect = inbox.Types(map[string]inbox.Effect{
	"PaymentMade": inbox.JSON("PaymentMade", book),
	"PaymentSeen": func(context.Context, pgx.Tx, event.Event) error { return inbox.Skip },
})

// Wrong: the second has the first one's id, and consumers drop it.
func entriesWrong(cause, debit, credit event.Event) []event.Event {
	return []event.Event{event.Derive(cause, "entry", debit), event.Derive(cause, "entry", credit)}
}

func entries(cause, debit, credit event.Event) []event.Event {
	return []event.Event{event.Derive(cause, "debit", debit), event.Derive(cause, "credit", credit)}
}

// Wrong: a second event of the payment, or an id that the inbox has forgotten, books it again.
func bookWrong(ctx context.Context, tx pgx.Tx, _ event.Event, p Payment) error {
	_, err := tx.Exec(ctx, "insert into entry (payment, amount) values ($1, $2)", p.ID, p.Amount)
	return err
}

// The table has unique (payment).
func book(ctx context.Context, tx pgx.Tx, _ event.Event, p Payment) error {
	_, err := tx.Exec(ctx, "insert into ledger values ($1, $2) on conflict (payment) do nothing", p.ID, p.Amount)
	return err
}

// Wrong: a rollback does not take the charge back, and the next run charges again.
func chargeWrong(ctx context.Context, tx pgx.Tx, e event.Event, p Payment) error {
	if err := provider.Charge(ctx, p); err != nil {
		return err
	}
	return book(ctx, tx, e, p)
}

// Another process takes the row, and charges through idempotency/guard under the payment's id.
func charge(ctx context.Context, tx pgx.Tx, _ event.Event, p Payment) error {
	_, err := tx.Exec(ctx, "insert into charge_due values ($1, $2) on conflict do nothing", p.ID, p.Amount)
	return err
}

// Wrong: nil records the event as applied; it is never booked.
func refuseWrong(ctx context.Context, tx pgx.Tx, e event.Event, p Payment) error {
	if p.Account == "" {
		slog.Warn("no account")
		return nil
	}
	return book(ctx, tx, e, p)
}

// outcome.Retryable when another system is down; any other error is tried again a few times.
func refuse(ctx context.Context, tx pgx.Tx, e event.Event, p Payment) error {
	if p.Account == "" {
		return outcome.Terminal("no_account", errors.New("the payment has no account"))
	}
	return book(ctx, tx, e, p)
}

// Wrong: keys are shown to operators, and stay in audits when the payload is gone.
func keyWrong(p Payment) event.Event {
	return event.Event{Topic: "payments", Key: p.Email, Type: "PaymentMade"}
}

func key(p Payment) event.Event {
	return event.Event{Topic: "payments", Key: p.Account, Type: "PaymentMade"}
}

// Wrong: an id that is older than a consumer's window (14 days) is quarantined.
func importWrong(p Payment) event.Event {
	return event.Event{ID: event.IDAt(p.At), Topic: "payments", Key: p.Account, Type: "PaymentMade"}
}

func importRight(p Payment) event.Event {
	return event.Event{Time: p.At, Topic: "payments", Key: p.Account, Type: "PaymentMade"}
}

// Wrong: one call shows nothing of a second run.
func testWrong(ctx context.Context, tx pgx.Tx, do inbox.Effect, e event.Event) error {
	return do(ctx, tx, e)
}

func test(t *testing.T, db *pgxpool.Pool, newHandler func(*pgxpool.Pool) (inbox.Handler, error), e event.Event) {
	r, err := outboxtest.Redeliver(t.Context(), t, db, newHandler, e)
	if err != nil || r.Count(0, inbox.Applied) != 1 { // then count your own rows
		t.Errorf("%+v, %v", r, err)
	}
}
