// Package ledger books payments: a worker whose effect is two rows in ledger_entry for each PaymentCreated.
//
// It shows the fast way to write an effect: a batch effect of one statement. Two keys stand behind each other. The
// inbox drops an event that is delivered again; the unique (entry_type, source_payment_id) holds when the same payment
// comes as another event. A payment that comes again with the same values is a duplicate, and fine; one that comes with
// other values is an error that says both, and parks its account's events: somebody is wrong, and a ledger must not
// choose.
package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/internal/contract"
	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/migrations"
)

// Name is the worker's name: the inbox's consumer, and the default of the Kafka group.
const Name = "ledger"

// Clearing is the account that every payment comes from. A customer's account may have the same name: the entry type
// tells the two apart.
const Clearing = "clearing"

// Codes of the terminal errors for a payment that is booked with other values.
const (
	CodeAmount   = "amount_mismatch"
	CodeCurrency = "currency_mismatch"
	CodeAccount  = "account_mismatch"
	CodeTenant   = "tenant_mismatch"
)

// Config sets the worker.
type Config = worker.Config

// Tables are what the ledger keeps.
func Tables() worker.Tables {
	return worker.Tables{Sets: []migrations.Set{migrations.Inbox}, DDL: []string{ddlEntry}, Probe: queryProbe}
}

// Run books until ctx ends, then drains and returns nil. It fails on a wrong configuration and on missing tables.
func Run(ctx context.Context, cfg Config) error {
	effect, err := Effect(cfg.Schema)
	if err != nil {
		return err
	}
	return worker.Run(ctx, cfg, worker.Worker{
		Name: Name, Tables: Tables(),
		Handler: func(in *inbox.Inbox) inbox.Handler { return in.Batch(effect) },
	})
}

// Effect books a batch into ledger_entry of that schema (empty: the search_path's). It is terminal for payloads that
// are no payment, for types other than PaymentCreated, and for payments that are booked with other values. A foreign
// producer that names no type means PaymentCreated.
func Effect(schema string) (inbox.BatchEffect, error) {
	prefix, err := pgschema.Prefix(schema)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	book, differing := pgschema.Expand(queryBook, prefix), pgschema.Expand(queryDiffering, prefix)
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
		return b.compare(ctx, tx, differing)
	}, nil
}

// batch is the payments as columns, as unnest wants them. Ids go as text: that is one type in every query mode of pgx.
type batch struct {
	ids, tenants, accounts, currencies, messages []string
	amounts                                      []int64
}

func read(events []event.Event) (*batch, error) {
	b := &batch{}
	for i, e := range events {
		if e.Type != "" && e.Type != contract.TypePaymentCreated {
			// Passing it over in silence could pass over a refund.
			return nil, inbox.At(i, inbox.Terminal(inbox.CodeUnknownType,
				fmt.Errorf("the ledger has no rule for events of type %q", e.Type)))
		}
		p, err := contract.Parse(e)
		if err != nil {
			return nil, inbox.At(i, err)
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

// compare looks at the payments that were there already: the same values are a duplicate, others an error.
func (b *batch) compare(ctx context.Context, tx pgx.Tx, query string) error {
	var said, booked struct {
		tenant, account, currency string
		amount                    int64
	}
	var i int
	var side string
	var found bool
	err := tx.QueryRow(ctx, query, b.ids, b.tenants, b.accounts, b.amounts, b.currencies).Scan(&i, &side,
		&said.account, &said.amount, &said.currency, &found, &booked.tenant, &booked.account, &booked.amount,
		&booked.currency)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("comparing %d payments with what is booked: %w", len(b.ids), err)
	case !found:
		return inbox.At(i, fmt.Errorf("the %s of payment %s was deleted while it was compared", side, b.ids[i]))
	}
	said.tenant = b.tenants[i]
	differs := func(code, what string, booked, said any) error {
		return inbox.At(i, inbox.Terminal(code,
			fmt.Errorf("payment %s is booked (%s) with %s %v, and the event says %v",
				b.ids[i], side, what, booked, said)))
	}
	switch {
	case booked.amount != said.amount:
		return differs(CodeAmount, "amount", abs(booked.amount), abs(said.amount))
	case booked.currency != said.currency:
		return differs(CodeCurrency, "currency", booked.currency, said.currency)
	case booked.account != said.account:
		return differs(CodeAccount, "account", fmt.Sprintf("%q", booked.account), fmt.Sprintf("%q", said.account))
	}
	return differs(CodeTenant, "tenant", fmt.Sprintf("%q", booked.tenant), fmt.Sprintf("%q", said.tenant))
}

// abs: a credit is booked negative, and the event says it positive.
func abs(amount int64) int64 { return max(amount, -amount) }
