// Package email sends a receipt for each payment: a worker whose effect is a row in email_notification, and a sender
// that sends a mail for each row over SMTP.
//
// A mail cannot be sent in a transaction: if it is marked as sent before it is sent, a crash loses it; if after, a
// crash repeats it. So the effect only writes the row, one for each payment, with the whole content of the mail. The
// sender sends each mail as an operation of a guard.Guard whose key is the Message-ID: it commits the intent, sends
// with no transaction open, and commits the outcome. After a crash, or a connection lost before the server's reply, the
// outcome is unknown. With a [Lookup], recovery asks the provider by the Message-ID and sends again only if it was not
// accepted.
//
// SMTP itself has no such query. Without a Lookup, Config.OnUnknown decides: [Hold], the default, sets the status
// unknown and leaves the row to an operator; [Resend] sends again with the same Message-ID, by which many mail systems
// drop the second mail. An operator who knows the outcome resolves a row with
//
//	-- not received: forget the attempt (the key is the Message-ID) by
//	--   relay keys free --operation email.receipt --key ... --sure --reason "..."
//	-- and send again
//	update email_notification set status = 'pending', uncertain = false, due_at = now() where id = ...
//	-- received
//	update email_notification set status = 'sent', sent_at = now() where id = ...
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

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
)

// Name is the worker's name: the inbox's consumer, and the default of the Kafka group.
const Name = "email"

// CodeMismatch is the code of the terminal error for a payment that has a notification with other values.
const CodeMismatch = "payment_mismatch"

// Tables returns the worker's tables.
func Tables() worker.Tables {
	return worker.Tables{
		Sets: []migrations.Set{migrations.Inbox, migrations.Idempotency},
		DDL:  []string{ddlNotification, ddlDue}, Probe: queryProbe,
	}
}

// Run consumes and sends until ctx ends, then finishes mails in flight and returns nil. It fails on an invalid
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
	handled := cfg.Inbox.Observer.Handled
	cfg.Inbox.Observer.Handled = func(i inbox.HandledInfo) {
		if i.Applied > 0 {
			s.wake()
		}
		if handled != nil {
			handled(i)
		}
	}
	return worker.Run(ctx, cfg.Config, worker.Worker{
		Name: Name, Tables: Tables(),
		Handler:    func(in *inbox.Inbox) inbox.Handler { return in.Each(effect) },
		Background: s.run,
	})
}

// Effect writes the notification of a payment. Its error is terminal for invalid payloads, and for payments that have a
// notification with other values. It skips events of other types. An empty type, as a foreign producer sends it, counts
// as PaymentCreated.
func Effect(cfg Config) (inbox.Effect, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	insert, find := worker.In(cfg.Schema, queryInsert), worker.In(cfg.Schema, queryFind)
	receipt := func(ctx context.Context, tx pgx.Tx, e event.Event, p contract.PaymentCreated) error {
		if err := p.Terminal(); err != nil {
			return err
		}
		subject, body := render(p)
		tag, err := tx.Exec(ctx, insert, p.PaymentID.String(), messageID(p.PaymentID, cfg.From), e.ID.String(),
			e.Tenant, p.AccountID,
			p.Amount, p.Currency, recipient(p.AccountID, e.Tenant, cfg.RecipientDomain), subject, body)
		if err != nil {
			return fmt.Errorf("writing the notification: %w", err)
		}
		if tag.RowsAffected() == 1 {
			return nil
		}
		return compare(ctx, tx, find, e, p)
	}
	skip := func(context.Context, pgx.Tx, event.Event) error { return inbox.Skip }
	return inbox.Types(map[string]inbox.Effect{
		contract.TypePaymentCreated: inbox.JSON(contract.TypePaymentCreated, receipt),
		"":                          inbox.JSON("", receipt),
		"*":                         skip,
	}), nil
}

// compare returns nil if the payment's notification has the same values: it is a duplicate then.
func compare(ctx context.Context, tx pgx.Tx, query string, e event.Event, p contract.PaymentCreated) error {
	old := contract.PaymentCreated{PaymentID: p.PaymentID}
	var tenant string
	err := tx.QueryRow(ctx, query, p.PaymentID.String()).Scan(&tenant, &old.AccountID, &old.Amount, &old.Currency)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("the notification of payment %s was deleted concurrently", p.PaymentID)
	case err != nil:
		return fmt.Errorf("reading the notification: %w", err)
	case old != p || tenant != e.Tenant:
		return outcome.Terminal(CodeMismatch, fmt.Errorf("the notification of payment %s says %d %s of account %q "+
			"(tenant %q), the event says %d %s of account %q (tenant %q)",
			p.PaymentID, old.Amount, old.Currency, old.AccountID, tenant, p.Amount, p.Currency, p.AccountID, e.Tenant))
	}
	return nil
}

// messageID derives the Message-ID from the payment and the sender's domain, so that every attempt has the same.
func messageID(payment uuid.UUID, from string) string {
	return "<receipt_payment_" + payment.String() + from[strings.LastIndexByte(from, '@'):] + ">"
}

var plainAccount = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)

// recipient derives an address from account and tenant. A real service would look it up.
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

func render(p contract.PaymentCreated) (subject, body string) {
	return "Receipt for payment " + p.PaymentID.String(),
		fmt.Sprintf("We have received your payment %s of %d %s (in minor units).\n\nThis mail is sent once.\n",
			p.PaymentID, p.Amount, p.Currency)
}
