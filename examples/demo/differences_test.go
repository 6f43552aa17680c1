package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestDifferencesAreFound corrupts the results of a finished demo step by step, and reconciles after each step.
func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	code := command(t.Context(), []string{
		"--payments=20", "--rate=200", "--no-faults", "--database-url=" + pgtest.AdminURL(t),
		"--kafka-brokers=" + strings.Join(kafkatest.Brokers(t), ","),
	}, &out, &errs, func(ctx context.Context, s *stack, e evidence) error {
		return corrupt(ctx, t, s, e)
	})
	if code != codeDiffer {
		t.Errorf("exit code %d, want %d: %s", code, codeDiffer, errs.String())
	}
	for _, want := range []string{"The results differ:", "  - payments with more than one mail: 1 ("} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q:\n%s%s", want, out.String(), errs.String())
		}
	}
}

func corrupt(ctx context.Context, t *testing.T, s *stack, e evidence) error {
	t.Helper()
	sql := func(query string) func() error {
		return func() error {
			tag, err := s.db.Exec(ctx, pgschema.Expand(query, s.prefix))
			if err == nil && tag.RowsAffected() != 1 {
				t.Errorf("%q touched %d rows", query, tag.RowsAffected())
			}
			return err
		}
	}
	for _, c := range []struct {
		want string
		do   func() error
	}{
		{"", func() error { return nil }},
		{"payments with more than one mail: 1 (", func() error { return mailAgain(ctx, s) }},
		{"charges without a payment: 1 (", func() error { return chargeAgain(ctx, s) }},
		{
			"payments without exactly one ledger pair: 1 (",
			sql("delete from {schema}ledger_entry where id = (select min(id) from {schema}ledger_entry)"),
		},
		{
			"payments without exactly one sent notification: 1 (",
			sql("update {schema}email_notification set status = 'failed', sent_at = null where id = (select min(id) " +
				"from {schema}email_notification)"),
		},
		{
			"the inbox has 19 rows of ledger for 20 payments",
			sql("set local effectonce.inbox = 'forget'; delete from {schema}inbox_message where consumer_name = " +
				"'ledger' and message_id = (select min(event_id::text)::uuid from {schema}payment)"),
		},
		{
			"payments that differ from the API's answer: 1 (",
			sql("update {schema}payment set amount = amount + 1 where payment_id = (select " +
				"max(payment_id::text)::uuid from {schema}payment)"),
		},
		{
			"payments that the API accepted and the table lacks: 1 (",
			sql("delete from {schema}payment where payment_id = (select min(payment_id::text)::uuid from " +
				"{schema}payment)"),
		},
		{"records without a payment (partition/offset): 2 (", func() error {
			return s.topic.client.ProduceSync(ctx, &kgo.Record{Topic: s.topic.name, Value: []byte("{}")}).FirstErr()
		}},
	} {
		if err := c.do(); err != nil {
			return err
		}
		e.mails, e.charges = s.box.Mails(), s.bank.Ledger()
		r, err := reconcile(ctx, e)
		if err != nil {
			return err
		}
		all := strings.Join(r.differences, "\n")
		if c.want == "" && all != "" || !strings.Contains(all, c.want) {
			t.Errorf("want a difference %q, got:\n%s", c.want, all)
		}
	}
	return nil
}

// mailAgain sends one of the mails to the server a second time.
func mailAgain(ctx context.Context, s *stack) error {
	smtp, err := email.NewSMTP(email.SMTPConfig{Addr: s.settings.SMTPAddr, TLS: email.TLSNone})
	if err != nil {
		return err
	}
	all := s.box.Mails()
	m := all[len(all)-1] // of a payment that no later step deletes
	return smtp.Send(ctx, email.Message{
		ID: m.MessageID, From: "receipts@effectonce.example", To: m.To[0],
		Subject: m.Subject, Body: m.Body,
	})
}

// chargeAgain repeats one of the charges at the bank.
func chargeAgain(ctx context.Context, s *stack) error {
	bank, err := payments.HTTPProvider(s.settings.Bank, 0)
	if err != nil {
		return err
	}
	c := s.bank.Ledger()[0]
	_, err = bank.Charge(ctx, payments.Charge{
		Key: c.Key, AccountID: c.AccountID, Amount: c.Amount,
		Currency: c.Currency,
	})
	return err
}
