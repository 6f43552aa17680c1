package inbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
)

// One effect per event, chosen by the event's type.
func ExampleInbox_Each() {
	type payment struct {
		ID        string `json:"payment_id"`
		AccountID string `json:"account_id"`
		Amount    int64  `json:"amount"`
	}
	setup := func(db *pgxpool.Pool) (inbox.Handler, error) {
		in, err := inbox.New(db, "ledger", inbox.Config{})
		if err != nil {
			return nil, err
		}
		return in.Each(inbox.Types(map[string]inbox.Effect{
			"PaymentCreated": inbox.JSON("PaymentCreated", func(ctx context.Context, tx pgx.Tx, _ event.Event,
				p payment,
			) error {
				if p.Amount <= 0 {
					return outcome.Terminal("bad_amount", fmt.Errorf("payment %s has amount %d", p.ID, p.Amount))
				}
				_, err := tx.Exec(ctx, `insert into ledger_entry (entry_type, source_payment_id, account_id, amount)
					values ('credit', $1, $2, $3) on conflict do nothing`, p.ID, p.AccountID, p.Amount)
				return err
			}),
			"*": func(context.Context, pgx.Tx, event.Event) error { return inbox.Skip },
		})), nil
	}
	_ = setup
}

// One statement for a whole batch. The effect names the event that it cannot parse, and the others run without it.
func ExampleInbox_Batch() {
	setup := func(in *inbox.Inbox) inbox.Handler {
		return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
			ids, amounts := make([]string, len(events)), make([]int64, len(events))
			for i, e := range events {
				p, err := event.DecodeJSON[struct {
					ID     string `json:"payment_id"`
					Amount int64  `json:"amount"`
				}](e)
				if err != nil {
					return inbox.Of(e, outcome.Terminal(inbox.CodeMalformed, err))
				}
				ids[i], amounts[i] = p.ID, p.Amount
			}
			_, err := tx.Exec(ctx, `insert into ledger_entry (entry_type, source_payment_id, amount)
				select 'credit', id, amount from unnest($1::text[], $2::bigint[]) as t (id, amount)
				on conflict do nothing`, ids, amounts)
			return err
		})
	}
	_ = setup
}

// A handler without a consumer: the caller reads the events and commits their offsets after Handle.
func ExampleHandler() {
	work := func(ctx context.Context, h inbox.Handler, events []event.Event) (decided int, err error) {
		outcomes, err := h.Handle(ctx, events)
		for decided < len(outcomes) && outcomes[decided] != inbox.Undecided {
			decided++
		}
		if halt, ok := errors.AsType[*inbox.HaltError](err); ok {
			return decided, fmt.Errorf("look at event %s: %w", halt.Event.ID, err)
		}
		return decided, err
	}
	_ = work
}

func ExampleTerminal() {
	err := outcome.Terminal("unknown_account", errors.New("account 7 does not exist"))
	_, code := outcome.Of(err)
	fmt.Println(code, "-", err)
	// Output: unknown_account - unknown_account: account 7 does not exist
}
