// Package email sends a receipt for each payment: a worker whose effect is a row in email_notification, and a sender
// that drains the rows over SMTP.
//
// A mail cannot be sent inside a transaction. Marking it as sent before sending loses it in a crash, and sending before
// marking repeats it. So the effect only writes the row, once for a payment, with everything that will be in the mail.
// The sender drains the rows: each mail is an operation of a guard.Guard whose key is its Message-ID. That it is about
// to be sent is committed, it is sent with no transaction open, and what became of it is committed. An attempt of which
// nothing was written down (a crash, a connection lost before the server's answer) is asked about by recovery, by its
// Message-ID, when there is a [Lookup]; only what was not accepted is sent again.
//
// SMTP alone has no such question. Then Config.OnUnknown decides: [Hold], the default, leaves the row in the status
// unknown for a person; [Resend] sends again with the same Message-ID, which many mail systems show once and none must.
// A person who knows decides with
//
//	delete from idempotency_key where operation = 'email.receipt' and key = ...                        -- send again: the Message-ID
//	update email_notification set status = 'pending', uncertain = false, due_at = now() where id = ...  -- and its row
//	update email_notification set status = 'sent', sent_at = now() where id = ...                      -- it had arrived
package email

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/internal/contract"
	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/migrations"
)

// Name is the worker's name: the inbox's consumer, and the default of the Kafka group.
const Name = "email"

// CodeMismatch is of the terminal error for a payment that was notified with other values.
const CodeMismatch = "payment_mismatch"

// Tables are what the worker keeps.
func Tables() worker.Tables {
	return worker.Tables{
		Sets: []migrations.Set{migrations.Inbox, migrations.Idempotency},
		DDL:  []string{ddlNotification, ddlDue}, Probe: queryProbe,
	}
}

// Run consumes and sends until ctx ends, then finishes what is under way and returns nil. It fails on a wrong
// configuration and on missing tables.
func Run(ctx context.Context, cfg Config) error {
	effect, err := Effect(cfg)
	if err != nil {
		return err
	}
	s, err := newSender(cfg)
	if err != nil {
		return err
	}
	before := cfg.Inbox.Observer.Handled
	cfg.Inbox.Observer.Handled = func(i inbox.HandledInfo) {
		if i.Applied > 0 {
			s.wake()
		}
		if before != nil {
			before(i)
		}
	}
	return worker.Run(ctx, cfg.Config, worker.Worker{
		Name: Name, Tables: Tables(),
		Handler: func(in *inbox.Inbox) inbox.Handler { return in.Each(effect) },
		Beside:  func(ctx context.Context, db *pgxpool.Pool) error { return s.run(ctx, db) },
	})
}

// Effect writes the notification of a payment, and nothing else. It is terminal for payloads that are no payment, and
// for payments that were notified with other values. Other types on the topic are nobody's receipt, and are skipped; a
// foreign producer that names no type means PaymentCreated.
func Effect(cfg Config) (inbox.Effect, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	prefix, err := pgschema.Prefix(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("email: %w", err)
	}
	notify, notified := pgschema.Expand(queryNotify, prefix), pgschema.Expand(queryNotified, prefix)
	receipt := inbox.JSON(func(ctx context.Context, tx pgx.Tx, e event.Event, p contract.PaymentCreated) error {
		if err := p.Terminal(); err != nil {
			return err
		}
		subject, body := letter(p)
		tag, err := tx.Exec(ctx, notify, p.PaymentID.String(), messageID(p.PaymentID, cfg.From), e.ID.String(),
			e.Tenant, p.AccountID,
			p.Amount, p.Currency, recipient(p.AccountID, e.Tenant, cfg.RecipientDomain), subject, body)
		if err != nil {
			return fmt.Errorf("writing the notification: %w", err)
		}
		if tag.RowsAffected() == 1 {
			return nil
		}
		return compare(ctx, tx, notified, e, p)
	})
	skip := func(context.Context, pgx.Tx, event.Event) error { return inbox.Skip }
	return inbox.Types(map[string]inbox.Effect{contract.TypePaymentCreated: receipt, "": receipt, "*": skip}), nil
}

// compare: the same payment once more is a duplicate when it says the same, else somebody is wrong.
func compare(ctx context.Context, tx pgx.Tx, query string, e event.Event, p contract.PaymentCreated) error {
	was := contract.PaymentCreated{PaymentID: p.PaymentID}
	var tenant string
	err := tx.QueryRow(ctx, query, p.PaymentID.String()).Scan(&tenant, &was.AccountID, &was.Amount, &was.Currency)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("the notification of payment %s was deleted while it was compared", p.PaymentID)
	case err != nil:
		return fmt.Errorf("comparing with the notification: %w", err)
	case was != p || tenant != e.Tenant:
		return inbox.Terminal(CodeMismatch, fmt.Errorf("payment %s was notified as %d %s of account %q (tenant %q), "+
			"and the event says %d %s of account %q (tenant %q)",
			p.PaymentID, was.Amount, was.Currency, was.AccountID, tenant, p.Amount, p.Currency, p.AccountID, e.Tenant))
	}
	return nil
}

// messageID is the mail's identity: it depends on the payment alone, and on whose name it is given in.
func messageID(payment uuid.UUID, from string) string {
	return "<receipt_payment_" + payment.String() + from[strings.LastIndexByte(from, '@'):] + ">"
}

var plainAccount = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)

// recipient makes an address of an account, where a real service would look one up. Accounts of two tenants are two
// people.
func recipient(account, tenant, domain string) string {
	local := account
	if len(local) > 50 || !plainAccount.MatchString(local) {
		sum := sha256.Sum256([]byte(account))
		local = "account-" + hex.EncodeToString(sum[:8])
	}
	if tenant != "" {
		sum := sha256.Sum256([]byte(tenant))
		local += "+" + hex.EncodeToString(sum[:4])
	}
	return local + "@" + domain
}

func letter(p contract.PaymentCreated) (subject, body string) {
	return "Receipt for payment " + p.PaymentID.String(),
		fmt.Sprintf("We have received your payment %s of %d %s (in minor units).\n\nThis mail is sent once.\n",
			p.PaymentID, p.Amount, p.Currency)
}
