package email

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func always(v mailbox.Verdict) func(mailbox.Mail, int) mailbox.Verdict {
	return func(mailbox.Mail, int) mailbox.Verdict { return v }
}

// first fails the first attempt of each mail.
func first(v mailbox.Verdict) func(mailbox.Mail, int) mailbox.Verdict {
	return func(_ mailbox.Mail, attempt int) mailbox.Verdict {
		if attempt == 1 {
			return v
		}
		return mailbox.Accept
	}
}

func TestAPaymentIsOneNotificationAndOneMail(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p, p, p) // three events
	f.step(t)
	f.idle(t)
	f.want(t, p, "sent/accepted", 1)
	m := f.box.Mails()[0]
	if m.MessageID != "<receipt_payment_"+p.PaymentID.String()+"@effectonce.example>" ||
		m.From != "receipts@effectonce.example" ||
		m.To[0] != "acc-1@customers.example" || !strings.Contains(m.Subject, p.PaymentID.String()) ||
		!strings.Contains(m.Body, "100 EUR") {
		t.Errorf("the mail is %+v", m)
	}
}

func TestAnotherAmountIsAnErrorWithBoth(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p)
	p.Amount = 250
	_, err := f.handler.Handle(t.Context(), []event.Event{created(t, p)})
	if code, _ := inbox.TerminalCode(err); code != CodeMismatch || !strings.Contains(err.Error(), "100 EUR") ||
		!strings.Contains(err.Error(), "250 EUR") {
		t.Errorf("error %v", err)
	}
	if n := pgtest.One[int](t, f.DB, "select count(*) from email_notification where amount = 100"); n != 1 {
		t.Errorf("%d notifications as before, want 1", n)
	}
}

func TestOtherTypesAreSkipped(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	e := created(t, payment())
	e.Type = "PaymentRefunded"
	if out, err := f.handler.Handle(t.Context(), []event.Event{e}); err != nil || out[0] != inbox.Skipped {
		t.Errorf("%v, %v", out, err)
	}
	f.idle(t)
}

func TestDefiniteAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		box   mailbox.Config
		steps int
		state string
		taken int
	}{
		"5xx for the mail": {mailbox.Config{Mail: always(mailbox.Refuse)}, 1, "failed/refused", 0},
		"5xx for the recipient": {
			mailbox.Config{Recipient: func(string) mailbox.Verdict { return mailbox.Refuse }},
			1,
			"failed/refused", 0,
		},
		"4xx for the mail":      {mailbox.Config{Mail: first(mailbox.Later)}, 2, "sent/accepted", 1},
		"4xx for the recipient": {mailbox.Config{Recipient: once(mailbox.Later)}, 2, "sent/accepted", 1},
		"gone at the recipient": {mailbox.Config{Recipient: once(mailbox.Drop)}, 2, "sent/accepted", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, c.box)
			p := payment()
			f.notify(t, p)
			for i := range c.steps {
				if i > 0 && f.state(t, p) != "pending/" {
					t.Errorf("after attempt %d: %s", i, f.state(t, p))
				}
				f.step(t)
			}
			f.idle(t)
			f.want(t, p, c.state, c.taken)
		})
	}
}

func once(v mailbox.Verdict) func(string) mailbox.Verdict {
	var o sync.Once
	return func(string) (out mailbox.Verdict) {
		o.Do(func() { out = v })
		return out
	}
}

// TestALostAnswer: the mail was sent whole, and the connection ended before the server said what it did. The two cases
// look the same from here.
func TestALostAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verdict mailbox.Verdict
		lookup  bool
		policy  OnUnknown
		steps   int
		state   string
		taken   int
	}{
		"accepted, asked":          {mailbox.AcceptAndDrop, true, Hold, 2, "sent/found", 1},
		"not accepted, asked":      {mailbox.Drop, true, Hold, 2, "sent/accepted", 1},
		"accepted, held":           {mailbox.AcceptAndDrop, false, Hold, 1, "unknown/unknown", 1},
		"not accepted, held":       {mailbox.Drop, false, Hold, 1, "unknown/unknown", 0},
		"accepted, sent again":     {mailbox.AcceptAndDrop, false, Resend, 2, "sent/accepted", 2},
		"not accepted, sent again": {mailbox.Drop, false, Resend, 2, "sent/accepted", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, mailbox.Config{Mail: first(c.verdict)})
			f.cfg.OnUnknown = c.policy
			if c.lookup {
				f.cfg.Lookup = f.box.Lookup
			}
			p := payment()
			f.notify(t, p)
			for range c.steps {
				f.step(t)
			}
			f.idle(t)
			f.want(t, p, c.state, c.taken)
			if n := len(f.box.Mails()); n > 1 {
				t.Errorf("%d Message-IDs, want one", n)
			}
		})
	}
}

// TestACrashBeforeTheRecord: the provider took the mail, and the sender died before it wrote that down.
func TestACrashBeforeTheRecord(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	lookup := httptest.NewServer(f.box.Handler())
	defer lookup.Close()
	var err error
	if f.cfg.Lookup, err = HTTPLookup(lookup.URL); err != nil {
		t.Fatal(err)
	}
	p := payment()
	f.notify(t, p)
	f.crash(t, answered)
	f.want(t, p, "sending/", 1)
	f.expire(t)
	f.step(t)
	f.idle(t)
	f.want(t, p, "sent/found", 1)
}

// TestACrashBeforeTheRow: what the provider answered was recorded, and the row not: nobody is asked again.
func TestACrashBeforeTheRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p)
	f.crash(t, recorded)
	f.want(t, p, "sending/", 1)
	f.expire(t)
	f.step(t)
	f.idle(t)
	f.want(t, p, "sent/accepted", 1)
}

func TestACrashBeforeTheSend(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	f.cfg.Lookup = f.box.Lookup
	p := payment()
	f.notify(t, p)
	send := f.cfg.Provider
	f.cfg.Provider = nothing{}
	f.crash(t, answered)
	f.cfg.Provider = send
	f.want(t, p, "sending/", 0)
	f.expire(t)
	f.step(t)
	f.want(t, p, "sent/accepted", 1)
}

// TestWithoutALookupACrashIsForPeople: nobody can tell, so nothing is sent and the row says so.
func TestWithoutALookupACrashIsForPeople(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p)
	f.crash(t, answered)
	f.expire(t)
	f.step(t)
	f.idle(t)
	f.want(t, p, "unknown/unknown", 1)
	// What the package comment tells a person to do, works.
	f.Exec(t, "delete from idempotency_key where operation = 'email.receipt' and key = (select message_id from "+
		"email_notification)")
	f.Exec(t, "update email_notification set status = 'pending', uncertain = false, due_at = now() where status = "+
		"'unknown'")
	f.step(t)
	f.want(t, p, "sent/accepted", 2)
}

// nothing takes a mail and forgets it.
type nothing struct{}

func (nothing) Send(context.Context, Message) error { return nil }

// moment is when a sender dies: before a statement, after so many like it.
type moment struct {
	statement string
	skip      int
}

var (
	// the provider has answered; the first one says that it is about to be called
	answered = moment{"-- pgstore: save", 1}
	recorded = moment{"-- email: record", 0} // the answer is recorded, the row is not
)

// crash does what a sender does until that moment.
func (f *fixture) crash(t *testing.T, when moment) {
	t.Helper()
	proxy := pgtest.NewProxy(t, f.URL)
	trap := proxy.On(func(sql string) bool { return strings.Contains(sql, when.statement) }, when.skip,
		pgtest.CutBefore)
	cfg := f.cfg
	cfg.DatabaseURL = secret.Of(proxy.URL())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := newSender(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool := connect(t, proxy.URL())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.run(ctx, pool)
	}()
	<-trap.Fired()
	proxy.Refuse(true)
	proxy.CutAll()
	cancel()
	<-done
}

// TestAStaleSenderRecordsNothing: it comes back after others have settled the mail.
func TestAStaleSenderRecordsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	f.cfg.Lookup = f.box.Lookup
	p := payment()
	f.notify(t, p)
	taken, goOn := make(chan struct{}), make(chan struct{})
	stale := f.cfg
	stale.Provider = provider(func(ctx context.Context, m Message) error {
		err := f.cfg.Provider.Send(ctx, m)
		close(taken)
		<-goOn
		return errors.Join(errors.New("it thinks that it failed"), err)
	})
	s, err := newSender(stale)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := s.once(t.Context(), f.Pool, uuid.New(), false)
		done <- err
	}()
	<-taken
	f.expire(t)
	f.step(t)
	f.want(t, p, "sent/found", 1)
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.idle(t)
	f.want(t, p, "sent/found", 1)
}

type provider func(ctx context.Context, m Message) error

func (p provider) Send(ctx context.Context, m Message) error { return p(ctx, m) }

// TestALostClaimIsGivenBack: the answer to a claim was lost, so nothing was sent, and nothing is unknown.
func TestALostClaimIsGivenBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p)
	proxy := pgtest.NewProxy(t, f.URL)
	trap := proxy.On(func(sql string) bool { return strings.Contains(sql, "-- email: claim") }, 0, pgtest.DropReply)
	cfg := f.cfg
	cfg.Senders = 1
	s, err := newSender(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	pool, done := connect(t, proxy.URL()), make(chan struct{})
	go func() {
		defer close(done)
		_ = s.run(ctx, pool)
	}()
	<-trap.Fired()
	pgtest.AwaitSQL(t, f.DB, "select bool_and(status not in ('pending', 'sending')) from email_notification")
	cancel()
	<-done
	f.want(t, p, "sent/accepted", 1)
}

func TestManySendersSendEachMailOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{Mail: first(mailbox.Later)})
	const n = 60
	for range n {
		f.notify(t, payment())
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		s, err := newSender(f.cfg)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { _ = s.run(ctx, f.Pool) })
	}
	pgtest.AwaitSQL(t, f.DB, "select count(*) = $1 from email_notification where status = 'sent'", n)
	cancel()
	wg.Wait()
	if f.box.Accepted() != n || len(f.box.Mails()) != n {
		t.Errorf("%d mails with %d Message-IDs, want %d", f.box.Accepted(), len(f.box.Mails()), n)
	}
}

func TestAnOldMailIsGivenUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{Mail: always(mailbox.Later)})
	p := payment()
	f.notify(t, p)
	f.Exec(t, "update email_notification set created_at = now() - interval '4 days'")
	f.step(t)
	f.want(t, p, "failed/gave up", 0)
}

func TestSMTPThatIsNotThereIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	gone, err := mailbox.New(mailbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	working := f.cfg.Provider
	if f.cfg.Provider, err = NewSMTP(SMTPConfig{Addr: gone.Addr()}); err != nil {
		t.Fatal(err)
	}
	p := payment()
	f.notify(t, p)
	f.step(t)
	f.want(t, p, "pending/", 0)
	f.cfg.Provider = working
	f.step(t)
	f.want(t, p, "sent/accepted", 1)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := Config{Provider: nothing{}}
	if _, err := good.withDefaults(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(c *Config){
		"Provider":        func(c *Config) { c.Provider = nil },
		"From":            func(c *Config) { c.From = "A <a@b.example>" },
		"RecipientDomain": func(c *Config) { c.RecipientDomain = "a b" },
		"OnUnknown":       func(c *Config) { c.OnUnknown = 7 },
		"Senders":         func(c *Config) { c.Senders = -1 },
		"Lease":           func(c *Config) { c.Lease = time.Second },
	} {
		c := good
		change(&c)
		if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestRecipients(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, who := range [][2]string{
		{"acc-1", ""},
		{"acc-1", "a"},
		{"acc-1", "b"},
		{"x\r\nBcc: y", ""},
		{"A", ""},
		{"a", ""},
		{"é", ""},
		{"..", ""},
		{strings.Repeat("a", 200), ""},
	} {
		r := recipient(who[0], who[1], "customers.example")
		if other, ok := seen[r]; ok {
			t.Errorf("%q and %q share %s", who[0], other, r)
		}
		seen[r] = who[0]
		if _, err := compose(Message{
			ID: "<a@b>", From: "a@b.example", To: r, Subject: "s", Body: "b",
			Date: time.Unix(0, 0),
		}); err != nil {
			t.Errorf("%q: %v", r, err)
		}
	}
}
