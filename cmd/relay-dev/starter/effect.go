package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
)

// Payment is the payload of the event.
type Payment struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

var effect = inbox.JSON("PaymentMade", book)

// book runs in the transaction that records the event's id: a second delivery finds it, and does nothing. The table's
// business key holds where the inbox cannot: when another event tells of the same payment.
func book(ctx context.Context, tx pgx.Tx, _ event.Event, p Payment) error {
	if p.Amount <= 0 { // no retry helps: the event is parked, and later ones of its key wait behind it
		return outcome.Terminal("bad_amount", errors.New("want a positive amount"))
	}
	_, err := tx.Exec(ctx, `insert into ledger_entry (entry_type, source_payment_id, account, amount)
		values ('payment', $1, $2, $3) on conflict (entry_type, source_payment_id) do nothing`, p.ID, p.Account, p.Amount)
	return err
}
