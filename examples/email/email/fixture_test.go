package email

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

var quiet = slog.New(slog.DiscardHandler)

// fixture is a database with the tables, a mail server, and the two halves of the worker: the effect and the sender.
type fixture struct {
	*pgtest.DB
	box     *mailbox.Mailbox
	cfg     Config
	handler inbox.Handler
}

func newFixture(t *testing.T, box mailbox.Config) *fixture {
	t.Helper()
	f := &fixture{DB: pgtest.New(t), box: newMailbox(t, box)}
	if err := Tables().Prepare(f.Pool, f.Schema, false)(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.cfg = config(t, f.DB, f.box)
	in, err := inbox.New(f.Pool, Name, inbox.Config{Schema: f.Schema, OnFailure: inbox.Halt})
	if err != nil {
		t.Fatal(err)
	}
	effect, err := Effect(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.handler = in.Each(effect)
	return f
}

// config has short waits, and leases that are long enough for a slow machine.
func config(t *testing.T, db *pgtest.DB, box *mailbox.Mailbox) Config {
	t.Helper()
	smtp, err := NewSMTP(SMTPConfig{Addr: box.Addr(), TLS: TLSNone})
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Config: worker.Config{DB: pgtest.Pool(t, db.URL), Schema: db.Schema, Logger: quiet}, Provider: smtp,
		PollEvery: 10 * time.Millisecond, Backoff: time.Millisecond, Settled: -1,
	}
}

func newMailbox(t *testing.T, cfg mailbox.Config) *mailbox.Mailbox {
	t.Helper()
	box, err := mailbox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- box.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return box
}

func payment() contract.PaymentCreated {
	return contract.PaymentCreated{PaymentID: event.NewID(), AccountID: "acc-1", Amount: 100, Currency: "EUR"}
}

func paymentEvent(t *testing.T, p contract.PaymentCreated) event.Event {
	t.Helper()
	e, err := event.NewJSON(event.Event{Topic: contract.Topic, Key: p.AccountID, Type: contract.TypePaymentCreated}, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// notify delivers an event for each payment to the effect.
func (f *fixture) notify(t *testing.T, payments ...contract.PaymentCreated) {
	t.Helper()
	for _, p := range payments {
		if _, err := f.handler.Handle(t.Context(), []event.Event{paymentEvent(t, p)}); err != nil {
			t.Fatal(err)
		}
	}
}

// step lets a sender process one due notification.
func (f *fixture) step(t *testing.T) {
	t.Helper()
	s, err := newSender(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, f.DB, "select exists (select from email_notification where status in ('pending', 'sending') "+
		"and due_at <= now())")
	if claimed, err := s.sendOne(t.Context(), f.Pool, uuid.New(), false); err != nil || !claimed {
		t.Fatalf("claimed %v, error %v", claimed, err)
	}
}

// checkIdle fails if a notification is still to be sent.
func (f *fixture) checkIdle(t *testing.T) {
	t.Helper()
	if n := pgtest.One[int](t, f.DB,
		"select count(*) from email_notification where status in ('pending', 'sending')"); n != 0 {
		t.Errorf("%d notifications are still to be sent", n)
	}
}

// state returns status/outcome of a payment's notification.
func (f *fixture) state(t *testing.T, p contract.PaymentCreated) string {
	t.Helper()
	return pgtest.One[string](t, f.DB, "select status || '/' || coalesce(outcome, '') from email_notification where "+
		"source_payment_id = $1", p.PaymentID)
}

func (f *fixture) check(t *testing.T, p contract.PaymentCreated, state string, accepted int) {
	t.Helper()
	if got := f.state(t, p); got != state {
		t.Errorf("the notification is %s, want %s (%s)", got, state, pgtest.One[string](t, f.DB,
			"select coalesce(last_error, '') from email_notification where source_payment_id = $1", p.PaymentID))
	}
	if got := f.box.Accepted(); got != accepted {
		t.Errorf("the mail server has accepted %d mails, want %d", got, accepted)
	}
}

// expire makes the lease of an attempt expire.
func (f *fixture) expire(t *testing.T) {
	t.Helper()
	f.Exec(t, "update email_notification set due_at = now() where status = 'sending'")
	f.Exec(t, "update idempotency_key set lease_until = now(), due_at = now() where state in ('IN_PROGRESS', "+
		"'UNKNOWN_REQUIRES_RECOVERY')")
}
