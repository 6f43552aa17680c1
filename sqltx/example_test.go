package sqltx_test

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/sqltx"
)

// An effect that books with database/sql and appends an event: the entry, the event and the id of the event that was
// consumed are committed together.
func ExampleDo() {
	type payment struct {
		ID     string `json:"payment_id"`
		Amount int64  `json:"amount"`
	}
	book := func(ctx context.Context, tx pgx.Tx, e event.Event, p payment) error {
		return sqltx.Do(ctx, tx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `insert into ledger_entry (entry_type, source_payment_id, amount)
				values ('credit', $1, $2) on conflict do nothing`, p.ID, p.Amount); err != nil {
				return err
			}
			booked, err := event.NewJSON(event.Event{Topic: "bookings", Key: p.ID, Type: "Booked"}, p)
			if err != nil {
				return err
			}
			return outbox.AppendSQL(ctx, tx, event.Derive(e, "booked", booked))
		})
	}
	setup := func(in *inbox.Inbox) inbox.Handler { return in.Each(inbox.JSON("PaymentCreated", book)) }
	_ = setup
}

// Any library that works in a *sql.Tx.
func ExampleDo_library() {
	type Payment struct{ ID string }
	_ = func(in *inbox.Inbox, book func(context.Context, *sql.Tx, Payment) error) inbox.Handler {
		h := in.Each(inbox.JSON("Paid", func(ctx context.Context, tx pgx.Tx, e event.Event, p Payment) error {
			return sqltx.Do(ctx, tx, func(tx *sql.Tx) error {
				return book(ctx, tx, p) // any of the lines below
			})
		}))
		return h
	}
}
