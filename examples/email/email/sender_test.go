package email

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore/operator"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

func always(v mailbox.Verdict) func(mailbox.Mail, int) mailbox.Verdict {
	return func(mailbox.Mail, int) mailbox.Verdict { return v }
}

// onFirstAttempt returns v for the first attempt of each mail.
func onFirstAttempt(v mailbox.Verdict) func(mailbox.Mail, int) mailbox.Verdict {
	return func(_ mailbox.Mail, attempt int) mailbox.Verdict {
		if attempt == 1 {
			return v
		}
		return mailbox.Accept
	}
}

func TestOneMailPerPayment(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p, p, p) // three events
	f.step(t)
	f.checkIdle(t)
	f.check(t, p, "sent/accepted", 1)
	m := f.box.Mails()[0]
	if m.MessageID != "<receipt_payment_"+p.PaymentID.String()+"@effectonce.example>" ||
		m.From != "receipts@effectonce.example" ||
		m.To[0] != "acc-1@customers.example" || !strings.Contains(m.Subject, p.PaymentID.String()) ||
		!strings.Contains(m.Body, "100 EUR") {
		t.Errorf("the mail is %+v", m)
	}
}

func TestAmountMismatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p)
	p.Amount = 250
	_, err := f.handler.Handle(t.Context(), []event.Event{paymentEvent(t, p)})
	if _, code := outcome.Of(err); code != CodeMismatch || !strings.Contains(err.Error(), "100 EUR") ||
		!strings.Contains(err.Error(), "250 EUR") {
		t.Errorf("error %v", err)
	}
	if n := pgtest.One[int](t, f.DB, "select count(*) from email_notification where amount = 100"); n != 1 {
		t.Errorf("%d notifications as before, want 1", n)
	}
}

func TestSkipsOtherTypes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	e := paymentEvent(t, payment())
	e.Type = "PaymentRefunded"
	if out, err := f.handler.Handle(t.Context(), []event.Event{e}); err != nil || out[0] != inbox.Skipped {
		t.Errorf("%v, %v", out, err)
	}
	f.checkIdle(t)
}

func TestDefiniteReplies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		box      mailbox.Config
		steps    int
		state    string
		accepted int
	}{
		"5xx for the mail": {mailbox.Config{Mail: always(mailbox.Reject)}, 1, "failed/refused", 0},
		"5xx for the recipient": {
			mailbox.Config{Recipient: func(string) mailbox.Verdict { return mailbox.Reject }},
			1,
			"failed/refused", 0,
		},
		"4xx for the mail":      {mailbox.Config{Mail: onFirstAttempt(mailbox.Defer)}, 2, "sent/accepted", 1},
		"4xx for the recipient": {mailbox.Config{Recipient: onFirstRecipient(mailbox.Defer)}, 2, "sent/accepted", 1},
		"gone at the recipient": {mailbox.Config{Recipient: onFirstRecipient(mailbox.Drop)}, 2, "sent/accepted", 1},
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
			f.checkIdle(t)
			f.check(t, p, c.state, c.accepted)
		})
	}
}

func onFirstRecipient(v mailbox.Verdict) func(string) mailbox.Verdict {
	var o sync.Once
	return func(string) (out mailbox.Verdict) {
		o.Do(func() { out = v })
		return out
	}
}

// TestLostReply: the whole mail was sent and the connection ended before the reply. The sender cannot tell whether it
// was accepted, and says what becomes of it.
func TestLostReply(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verdict  mailbox.Verdict
		lookup   bool
		policy   OnUnknown
		steps    int
		state    string
		accepted int
		says     string
	}{
		"accepted, asked":          {mailbox.AcceptAndDrop, true, Hold, 2, "sent/found", 1, "the provider is asked"},
		"not accepted, asked":      {mailbox.Drop, true, Hold, 2, "sent/accepted", 1, "the provider is asked"},
		"accepted, held":           {mailbox.AcceptAndDrop, false, Hold, 1, "unknown/unknown", 1, "it is held"},
		"not accepted, held":       {mailbox.Drop, false, Hold, 1, "unknown/unknown", 0, "it is held"},
		"accepted, sent again":     {mailbox.AcceptAndDrop, false, Resend, 2, "sent/accepted", 2, "it is sent again"},
		"not accepted, sent again": {mailbox.Drop, false, Resend, 2, "sent/accepted", 1, "it is sent again"},
		"refused for now":          {mailbox.Defer, false, Hold, 2, "sent/accepted", 1, "was not accepted; retrying"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, mailbox.Config{Mail: onFirstAttempt(c.verdict)})
			var log strings.Builder
			f.cfg.OnUnknown, f.cfg.Logger = c.policy, slog.New(slog.NewTextHandler(&log, nil))
			if c.lookup {
				f.cfg.Lookup = f.box.Lookup
			}
			p := payment()
			f.notify(t, p)
			for range c.steps {
				f.step(t)
			}
			f.checkIdle(t)
			f.check(t, p, c.state, c.accepted)
			sure := strings.Contains(log.String(), "a mail was not accepted")
			if !strings.Contains(log.String(), c.says) || sure != (c.verdict == mailbox.Defer) {
				t.Errorf("the log does not say %q:\n%s", c.says, &log)
			}
			if n := len(f.box.Mails()); n > 1 {
				t.Errorf("%d Message-IDs, want one", n)
			}
		})
	}
}

// TestSlowProvider: it accepts a mail without an answer in time, and its query does not know the mail yet. Nobody asks
// before it must, and the mail is not sent again.
func TestSlowProvider(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{Mail: onFirstAttempt(mailbox.AcceptAndDrop)})
	f.cfg.Settled = time.Hour
	f.cfg.Lookup = func(context.Context, string) (bool, error) {
		t.Error("asked too early")
		return false, nil
	}
	p := payment()
	f.notify(t, p)
	for range 3 {
		f.step(t)
	}
	f.check(t, p, "pending/", 1)
}

// TestCrashBeforeRecord: the provider accepted the mail, and the sender died before it recorded that.
func TestCrashBeforeRecord(t *testing.T) {
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
	f.crash(t, replied)
	f.check(t, p, "sending/", 1)
	f.expire(t)
	f.step(t)
	f.checkIdle(t)
	f.check(t, p, "sent/found", 1)
}

// TestCrashBeforeRowUpdate: the guard recorded the reply, and the row was not updated. The provider is not asked again.
func TestCrashBeforeRowUpdate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p)
	f.crash(t, recorded)
	f.check(t, p, "sending/", 1)
	f.expire(t)
	f.step(t)
	f.checkIdle(t)
	f.check(t, p, "sent/accepted", 1)
}

func TestCrashBeforeSend(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	f.cfg.Lookup = f.box.Lookup
	p := payment()
	f.notify(t, p)
	send := f.cfg.Provider
	f.cfg.Provider = discard{}
	f.crash(t, replied)
	f.cfg.Provider = send
	f.check(t, p, "sending/", 0)
	f.expire(t)
	f.step(t)
	f.check(t, p, "sent/accepted", 1)
}

// TestCrashWithoutLookup: the outcome stays unknown, the mail is not sent again, and the row's status says so.
func TestCrashWithoutLookup(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	p := payment()
	f.notify(t, p)
	f.crash(t, replied)
	f.expire(t)
	f.step(t)
	f.checkIdle(t)
	f.check(t, p, "unknown/unknown", 1)
	// As in the package comment.
	keys, err := operator.New(f.Pool, f.Schema, "ann")
	if err != nil {
		t.Fatal(err)
	}
	id := pgtest.One[string](t, f.DB, "select message_id from email_notification")
	if err := keys.Free(t.Context(), idempotency.Key{Operation: operation, Value: id}, "not received"); err != nil {
		t.Fatal(err)
	}
	f.Exec(t, "update email_notification set status = 'pending', uncertain = false, due_at = now() where status = "+
		"'unknown'")
	f.step(t)
	f.check(t, p, "sent/accepted", 2)
}

// discard is a Provider that accepts and drops every mail.
type discard struct{}

func (discard) Send(context.Context, Message) error { return nil }

// crashPoint is where a sender dies: before a statement, after skip earlier ones.
type crashPoint struct {
	statement string
	skip      int
}

var (
	// The provider has replied. The first save is the intent.
	replied  = crashPoint{"-- pgstore: save", 1}
	recorded = crashPoint{"-- email: record", 0} // the guard has recorded the reply, the row is not updated
)

// death ends each goroutine that wants a connection of a pool, once the process is dead. It is the pool's tracer.
type death struct{ dead atomic.Bool }

func (d *death) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool,
	_ pgxpool.TraceAcquireStartData,
) context.Context {
	if d.dead.Load() {
		runtime.Goexit()
	}
	return ctx
}

func (*death) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

func (*death) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (*death) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// crash runs a sender up to a crash point. From that statement on it does nothing more.
func (f *fixture) crash(t *testing.T, at crashPoint) {
	t.Helper()
	proxy, process := pgtest.NewProxy(t, f.URL), &death{}
	seen := 0
	trap := proxy.On(func(sql string) bool {
		if strings.Contains(sql, at.statement) {
			seen++
		}
		if seen > at.skip {
			process.dead.Store(true)
		}
		return seen > at.skip
	}, 0, pgtest.CutBefore)
	u, err := url.Parse(proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	name, query := uuid.NewString(), u.Query()
	query.Set("application_name", name)
	u.RawQuery = query.Encode()
	cfg := f.cfg
	cfg.DB = pgtest.Pool(t, u.String())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := newSender(cfg)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = process
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
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
	// The server may still be running a statement of the dead process, such as a claim.
	pgtest.AwaitSQL(t, f.DB, "select not exists (select from pg_stat_activity where application_name = $1)", name)
}

// TestStaleSenderRecordsNothing: a sender returns after its lease has expired and another has recorded the outcome.
func TestStaleSenderRecordsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	f.cfg.Lookup = f.box.Lookup
	p := payment()
	f.notify(t, p)
	accepted, resume := make(chan struct{}), make(chan struct{})
	stale := f.cfg
	stale.Provider = provider(func(ctx context.Context, m Message) error {
		err := f.cfg.Provider.Send(ctx, m)
		close(accepted)
		<-resume
		return errors.Join(errors.New("failed after the server had accepted"), err)
	})
	s, err := newSender(stale)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := s.sendOne(t.Context(), f.Pool, uuid.New(), false)
		done <- err
	}()
	<-accepted
	f.expire(t)
	f.step(t)
	f.check(t, p, "sent/found", 1)
	close(resume)
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.checkIdle(t)
	f.check(t, p, "sent/found", 1)
}

type provider func(ctx context.Context, m Message) error

func (p provider) Send(ctx context.Context, m Message) error { return p(ctx, m) }

// TestReleasesClaimWithLostReply: the reply to a claim was lost, so nothing was sent.
func TestReleasesClaimWithLostReply(t *testing.T) {
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
	f.check(t, p, "sent/accepted", 1)
}

func TestConcurrentSendersSendOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{Mail: onFirstAttempt(mailbox.Defer)})
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

func TestGivesUpOldMail(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{Mail: always(mailbox.Defer)})
	p := payment()
	f.notify(t, p)
	f.Exec(t, "update email_notification set created_at = now() - interval '4 days'")
	f.step(t)
	f.check(t, p, "failed/gave up", 0)
}

func TestRetriesWhileServerIsDown(t *testing.T) {
	t.Parallel()
	f := newFixture(t, mailbox.Config{})
	down, err := mailbox.New(mailbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_ = down.Close()
	working := f.cfg.Provider
	if f.cfg.Provider, err = NewSMTP(SMTPConfig{Addr: down.Addr()}); err != nil {
		t.Fatal(err)
	}
	p := payment()
	f.notify(t, p)
	f.step(t)
	f.check(t, p, "pending/", 0)
	f.cfg.Provider = working
	f.step(t)
	f.check(t, p, "sent/accepted", 1)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := Config{Provider: discard{}}
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
	for _, c := range [][2]string{
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
		r := recipient(c[0], c[1], "customers.example")
		if other, ok := seen[r]; ok {
			t.Errorf("%q and %q share %s", c[0], other, r)
		}
		seen[r] = c[0]
		if _, err := compose(Message{
			ID: "<a@b>", From: "a@b.example", To: r, Subject: "s", Body: "b",
			Date: time.Unix(0, 0),
		}); err != nil {
			t.Errorf("%q: %v", r, err)
		}
	}
}
