// Package ledger books payments: a worker whose effect is two rows in ledger_entry for each PaymentCreated.
//
// It shows the fast way to write an effect: one statement for a batch. Two keys deduplicate. The inbox drops an event
// that is delivered again; the unique constraint (entry_type, source_payment_id) catches another event for the same
// payment. If that event has the same values it is a duplicate. If not, the error names both values, and the account's
// events are parked: the ledger cannot know which are correct.
package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
)

// Name is the worker's name: the inbox's consumer, and the default of the Kafka group.
const Name = "ledger"

// Clearing is the account that every payment is debited from. A customer's account may have the same name: the entry
// type distinguishes them.
const Clearing = "clearing"

// Codes of the terminal errors for a payment that was booked with other values.
const (
	CodeAmount   = "amount_mismatch"
	CodeCurrency = "currency_mismatch"
	CodeAccount  = "account_mismatch"
	CodeTenant   = "tenant_mismatch"
)

// Config configures the worker.
type Config = worker.Config

// Tables returns the ledger's tables.
func Tables() worker.Tables {
	return worker.Tables{Sets: []migrations.Set{migrations.Inbox}, DDL: []string{ddlEntry}, Probe: queryProbe}
}

// Run books until ctx ends, then drains and returns nil. It fails on an invalid configuration and on missing tables.
func Run(ctx context.Context, cfg Config) error {
	return worker.Run(ctx, cfg, worker.Worker{
		Name: Name, Tables: Tables(),
		Handler: func(in *inbox.Inbox) inbox.Handler { return in.Batch(Effect(cfg.Schema)) },
	})
}

// Effect books a batch into ledger_entry of a schema (empty: that of the search_path). Its error is terminal for
// invalid payloads, for types other than PaymentCreated, and for payments that were booked with other values. An empty
// type, as a foreign producer sends it, counts as PaymentCreated.
func Effect(schema string) inbox.BatchEffect {
	book, mismatch := worker.In(schema, queryBook), worker.In(schema, queryMismatch)
	return func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		b, err := read(events)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, book, b.ids, b.tenants, b.accounts, b.amounts, b.currencies, b.messages)
		if err != nil {
			return fmt.Errorf("booking %d payments: %w", len(events), err)
		}
		if tag.RowsAffected() == int64(2*len(events)) {
			return nil
		}
		return b.compare(ctx, tx, mismatch)
	}
}

// batch holds the payments as columns for unnest. Ids are text, which has the same type in every query mode of pgx.
type batch struct {
	events                                       []event.Event
	ids, tenants, accounts, currencies, messages []string
	amounts                                      []int64
}

func read(events []event.Event) (*batch, error) {
	b := &batch{events: events}
	for _, e := range events {
		if e.Type != "" && e.Type != contract.TypePaymentCreated {
			// Terminal, not skipped: it could be a refund.
			return nil, inbox.Of(e, outcome.Terminal(inbox.CodeUnknownType,
				fmt.Errorf("the ledger does not handle events of type %q", e.Type)))
		}
		p, err := contract.Parse(e)
		if err != nil {
			return nil, inbox.Of(e, err)
		}
		b.ids = append(b.ids, p.PaymentID.String())
		b.tenants = append(b.tenants, e.Tenant)
		b.accounts = append(b.accounts, p.AccountID)
		b.amounts = append(b.amounts, p.Amount)
		b.currencies = append(b.currencies, p.Currency)
		b.messages = append(b.messages, e.ID.String())
	}
	return b, nil
}

// compare checks the payments that were booked before: other values than the event's are an error.
func (b *batch) compare(ctx context.Context, tx pgx.Tx, query string) error {
	var inEvent, booked struct {
		tenant, account, currency string
		amount                    int64
	}
	var i int
	var side string
	var found bool
	err := tx.QueryRow(ctx, query, b.ids, b.tenants, b.accounts, b.amounts, b.currencies).Scan(&i, &side,
		&inEvent.account, &inEvent.amount, &inEvent.currency, &found, &booked.tenant, &booked.account, &booked.amount,
		&booked.currency)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("comparing %d payments with the ledger: %w", len(b.ids), err)
	case !found:
		return inbox.Of(b.events[i], fmt.Errorf("the %s of payment %s was deleted concurrently", side, b.ids[i]))
	}
	inEvent.tenant = b.tenants[i]
	mismatch := func(code, field string, booked, inEvent any) error {
		return inbox.Of(b.events[i], outcome.Terminal(code,
			fmt.Errorf("payment %s is booked (%s) with %s %v, and the event says %v",
				b.ids[i], side, field, booked, inEvent)))
	}
	switch {
	case booked.amount != inEvent.amount:
		return mismatch(CodeAmount, "amount", abs(booked.amount), abs(inEvent.amount))
	case booked.currency != inEvent.currency:
		return mismatch(CodeCurrency, "currency", booked.currency, inEvent.currency)
	case booked.account != inEvent.account:
		return mismatch(CodeAccount, "account", fmt.Sprintf("%q", booked.account), fmt.Sprintf("%q", inEvent.account))
	}
	return mismatch(CodeTenant, "tenant", fmt.Sprintf("%q", booked.tenant), fmt.Sprintf("%q", inEvent.tenant))
}

// abs is needed because a credit is booked as a negative amount.
func abs(amount int64) int64 { return max(amount, -amount) }
