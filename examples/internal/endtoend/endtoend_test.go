// Package endtoend runs the three examples together over real servers. Every record is delivered twice.
package endtoend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

// twice publishes every event twice, as a relay does that lost the first reply.
type twice struct{ relay.Publisher }

func (p twice) Publish(ctx context.Context, events []event.Event) []error {
	if errs := p.Publisher.Publish(ctx, events); len(errs) == 0 {
		return errs
	}
	return p.Publisher.Publish(ctx, events)
}

func TestBooksAndMailsEachPaymentOnce(t *testing.T) {
	t.Parallel()
	const n = 30
	// The producer and each worker have their own databases: only the topic connects them.
	shop, books, post := pgtest.New(t), pgtest.New(t), pgtest.New(t)
	topic, brokers, quiet := kafkatest.Topic(t, 3), kafkatest.Brokers(t), slog.New(slog.DiscardHandler)
	box, err := mailbox.New(mailbox.Config{Mail: loseFirstReply})
	if err != nil {
		t.Fatal(err)
	}
	smtp, err := email.NewSMTP(email.SMTPConfig{Addr: box.Addr(), TLS: email.TLSNone})
	if err != nil {
		t.Fatal(err)
	}
	kafka, err := publisher.NewKafka(brokers, publisher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer kafka.Close()
	r, err := relay.New(shop.Pool, twice{kafka}, relay.Config{Schema: shop.Schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := payments.Tables().Prepare(shop.Pool, shop.Schema, false)(t.Context()); err != nil {
		t.Fatal(err)
	}
	workerConfig := func(db *pgtest.DB) worker.Config {
		return worker.Config{
			DB: pgtest.Pool(t, db.AdminURL), Schema: db.Schema, Brokers: brokers, Topic: topic,
			Group: db.Schema, Logger: quiet,
		}
	}
	store := pgtest.Pool(t, shop.AdminURL)
	booking, posting := workerConfig(books), workerConfig(post)
	var all runners
	defer all.stop(t)
	all.start(t, box.Run)
	all.start(t, r.Run)
	all.start(t, func(ctx context.Context) error {
		return payments.Run(ctx, store, payments.Config{
			Schema: shop.Schema, Listener: listener, Topic: topic, SkipMigrate: true, Wake: r.Wake, Logger: quiet,
		})
	})
	all.start(t, func(ctx context.Context) error { return ledger.Run(ctx, booking) })
	all.start(t, func(ctx context.Context) error {
		return email.Run(ctx, email.Config{
			Config: posting, Provider: smtp, Lookup: box.Lookup, Settled: -1,
		})
	})
	ids := pay(t, "http://"+listener.Addr().String()+"/payments", n)

	pgtest.AwaitSQL(t, books, "select to_regclass('ledger_entry') is not null")
	pgtest.AwaitSQL(t, post, "select to_regclass('email_notification') is not null")
	pgtest.AwaitSQL(t, books, "select count(*) >= $1 from ledger_entry", 2*n)
	pgtest.AwaitSQL(t, post, "select count(*) >= $1 from email_notification where status = 'sent'", n)
	pgtest.AwaitSQL(t, shop, "select count(*) = 0 from outbox_event")
	all.stop(t)

	if got := pgtest.One[int](t, shop, "select count(*) from payment where payment_id = any($1::text[]::uuid[])",
		ids); got != n {
		t.Errorf("%d payments, want %d", got, n)
	}
	if got := pgtest.One[int](t, books,
		`select count(*) from (select from ledger_entry where source_payment_id = any($1::text[]::uuid[])
		group by source_payment_id having count(*) = 2 and sum(amount) = 0
			and max(amount) = 100) pair`, ids); got != n {
		t.Errorf("%d pairs in the ledger, want %d", got, n)
	}
	if got := pgtest.One[int](t, books, "select count(*) from ledger_entry"); got != 2*n {
		t.Errorf("%d rows in the ledger, want %d", got, 2*n)
	}
	if got := pgtest.One[int](t, post, "select count(*) from email_notification where status = 'sent' and "+
		"source_payment_id = any($1::text[]::uuid[])", ids); got != n {
		t.Errorf("%d notifications, want %d", got, n)
	}
	if len(box.Mails()) != n || box.Accepted() != n {
		t.Errorf("%d mails with %d Message-IDs, want %d", box.Accepted(), len(box.Mails()), n)
	}
	if records := len(kafkatest.ReadAll(t, topic)); records < 2*n {
		t.Errorf("the topic has %d records, want each at least twice", records)
	}
}

// loseFirstReply accepts about every fourth mail without a reply at the first attempt.
func loseFirstReply(m mailbox.Mail, attempt int) mailbox.Verdict {
	if attempt == 1 && strings.ContainsAny(m.MessageID[len("<receipt_payment_")+35:][:1], "048c") {
		return mailbox.AcceptAndDrop
	}
	return mailbox.Accept
}

// pay makes n payments, each by two concurrent requests with the same key, and returns their ids. A slow machine
// may take longer than the API waits: a request that gets 409 or 503 is sent again, as clients do.
func pay(t *testing.T, url string, n int) []string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := make([][2]string, n)
	var wg sync.WaitGroup
	for i := range n {
		for k := range answers[i] {
			wg.Go(func() {
				body := fmt.Sprintf(`{"account_id":"acc-%d","amount":100,"currency":"EUR"}`, i%7)
				status, answer := 0, ""
				for status == 0 || status == http.StatusConflict || status == http.StatusServiceUnavailable {
					var err error
					if status, answer, err = payOnce(t.Context(), client, url, fmt.Sprint("k", i), body); err != nil {
						t.Error(err)
						return
					}
				}
				if status != http.StatusCreated {
					t.Errorf("payment %d: %d %s", i, status, answer)
				}
				answers[i][k] = answer
			})
		}
	}
	wg.Wait()
	var ids []string
	for i, a := range answers {
		var p struct {
			PaymentID string `json:"payment_id"`
		}
		if err := json.Unmarshal([]byte(a[0]), &p); err != nil || a[0] != a[1] {
			t.Fatalf("payment %d: two answers %s and %s, %v", i, a[0], a[1], err)
		}
		ids = append(ids, p.PaymentID)
	}
	return ids
}

func payOnce(ctx context.Context, client *http.Client, url, key, body string) (status int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set(payments.HeaderKey, key)
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// runners run until stop cancels them all.
type runners struct {
	cancels []context.CancelFunc
	wg      sync.WaitGroup
}

func (r *runners) start(t *testing.T, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.cancels = append(r.cancels, cancel)
	r.wg.Go(func() {
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	})
}

func (r *runners) stop(t *testing.T) {
	t.Helper()
	for _, cancel := range r.cancels {
		cancel()
	}
	r.wg.Wait()
	r.cancels = nil
}
