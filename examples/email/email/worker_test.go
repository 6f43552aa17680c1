package email

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
)

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestFailuresBetweenSteps: the first attempt at the row fails before its COMMIT, the second loses the reply to COMMIT,
// and the record of the mail fails. The event is delivered twice as well. There is one row and one mail.
func TestFailuresBetweenSteps(t *testing.T) {
	t.Parallel()
	db, topic, box := pgtest.New(t), kafkatest.Topic(t, 1), newMailbox(t, mailbox.Config{})
	p := payment()
	e := paymentEvent(t, p)
	e.Topic = topic
	k, err := publisher.NewKafka(kafkatest.Brokers(t), publisher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, err := range k.Publish(t.Context(), []event.Event{e, e}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	proxy := pgtest.NewProxy(t, db.URL)
	on := func(text string, action pgtest.Action) *pgtest.Trap {
		return proxy.On(func(sql string) bool { return strings.Contains(sql, text) }, 0, action)
	}
	cut, lostReply := on("inbox: commit", pgtest.CutBefore), on("inbox: commit", pgtest.DropReply)
	record := on("email: record", pgtest.CutBefore)
	cfg := config(t, db, box)
	cfg.DB, cfg.Brokers, cfg.Topic, cfg.Group = pgtest.Pool(t, proxy.URL()), kafkatest.Brokers(t), topic, topic
	cfg.Lookup = box.Lookup
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	for _, trap := range []*pgtest.Trap{cut, lostReply, record} {
		select {
		case <-trap.Fired():
		case err := <-done:
			t.Fatalf("the worker ended: %v", err)
		}
	}
	pgtest.AwaitSQL(t, db, "select bool_and(status = 'sent') from email_notification")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := pgtest.One[int](t, db, "select count(*) from email_notification where source_payment_id = $1",
		p.PaymentID); n != 1 {
		t.Errorf("%d notifications, want 1", n)
	}
	if n := box.Accepted(); n != 1 {
		t.Errorf("%d mails, want 1", n)
	}
}
