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
	tag, err := tx.Exec(ctx, "select from account where name = $1", p.Account)
	if err == nil && tag.RowsAffected() == 0 { // no retry helps: it is parked, and later events of its key wait
		err = outcome.Terminal("no_account", errors.New("the ledger has no such account"))
	}
	if err == nil {
		_, err = tx.Exec(ctx, `insert into ledger_entry (entry_type, source_payment_id, account, amount)
			values ('payment', $1, $2, $3) on conflict do nothing`, p.ID, p.Account, p.Amount)
	}
	return err
}
