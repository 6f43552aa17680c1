package endtoend

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
)

// TestDrainWhileNothingRuns: an effect has failed and runs again in an hour when the worker is to stop. Nothing runs,
// so it stops at once, however long what runs may go on, and without calling the partition halted. The next worker
// begins with the event.
func TestDrainWhileNothingRuns(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t, migrations.Inbox), kafkatest.Topic(t, 1)
	e := event.Event{ID: event.NewID(), Type: "Paid", Key: "order-1"}
	e.Position.Epoch = event.NewID().String() + ".1"
	r := kafkatest.Record{Value: []byte("{}")}
	for _, h := range event.AppendHeaders(nil, &e) {
		r.Headers = append(r.Headers, kafkatest.Header(h))
	}
	kafkatest.Produce(t, topic, r)
	work := func(effect inbox.Effect, log *slog.Logger, ready <-chan struct{}) {
		in, err := inbox.New(db.Pool, "ledger", inbox.Config{
			Schema: db.Schema, Backoff: time.Hour, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		c, err := consumer.New(in.Each(effect), kafkatest.Brokers(t), []string{topic}, consumer.Config{
			Group: topic, DrainTimeout: time.Hour, Logger: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		<-ready
		if log.Enabled(t.Context(), slog.LevelError) {
			pgtest.AwaitSQL(t, db, "select trying_at is not null from inbox_progress")
		}
		cancel()
		pgtest.Await(t, "the worker to stop although nothing runs", func() (bool, error) {
			select {
			case err := <-ended:
				return true, err
			default:
				return false, nil
			}
		})
	}
	failed, said := make(chan struct{}), &bytes.Buffer{}
	work(func(context.Context, pgx.Tx, event.Event) error {
		close(failed)
		return outcome.Retryable(errors.New("the card network is away"))
	}, slog.New(slog.NewTextHandler(said, nil)), failed)
	if text := said.String(); strings.Contains(text, "halted") || strings.Contains(text, "ERROR") {
		t.Errorf("it logs\n%s", text)
	}
	applied := make(chan struct{})
	work(func(_ context.Context, _ pgx.Tx, got event.Event) error {
		if got.ID == e.ID {
			close(applied)
		}
		return nil
	}, slog.New(slog.DiscardHandler), applied)
}
