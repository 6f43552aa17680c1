package endtoend

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// checkAccount compares, for each partition that a consumer has begun, the offsets up to its progress with those that
// are accounted for.
func checkAccount(t *testing.T, db *pgtest.DB, unaccounted int) {
	t.Helper()
	if n := pgtest.One[int](t, db, `select count(*) from inbox_progress where began_offset is not null`); n == 0 {
		t.Error("no partition has begun")
	}
	if n := pgtest.One[int](t, db, `select coalesce(sum(from_offset - began_offset - accounted), 0)::int
		from inbox_progress where began_offset is not null`); n != unaccounted {
		t.Errorf("%d offsets are not accounted for, want %d", n, unaccounted)
	}
}

// awaitProgress waits until the database's progress is at the ends of the logs, whatever they end with. The ends move:
// EndTransaction returns before the markers are in the logs.
func awaitProgress(t *testing.T, db *pgtest.DB, topic string) {
	t.Helper()
	pgtest.Await(t, "the progress is at the ends of the logs", func() (bool, error) {
		var ends, progress int64
		for _, end := range kafkatest.Ends(t, topic) {
			ends += end
		}
		err := db.Pool.QueryRow(t.Context(), "select sum(from_offset)::bigint from inbox_progress").Scan(&progress)
		return progress == ends, err
	})
}

// awaitEnds waits until a consumer is at the ends of the logs, whatever they end with.
func awaitEnds(t *testing.T, c *consumer.Consumer, topic string) {
	t.Helper()
	pgtest.Await(t, "the ends of the logs are read", func() (bool, error) {
		ends := kafkatest.Ends(t, topic)
		for _, p := range c.Status().Partitions {
			if p.Next == ends[p.ID] {
				delete(ends, p.ID)
			}
		}
		return len(ends) == 0, nil
	})
}

// leavesOut is a wrapper of a handler that does not pass on some events, and says that they were skipped.
type leavesOut struct {
	inbox.Handler
	which func(e *event.Event) bool
}

func (l leavesOut) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	out := make([]inbox.Outcome, len(events))
	for i := range events {
		if l.which(&events[i]) {
			out[i] = inbox.Skipped
			continue
		}
		one, err := l.Handler.Handle(ctx, events[i:i+1])
		if err != nil {
			return out, err
		}
		out[i] = one[0]
	}
	return out, nil
}

// TestP9_2_EveryOffsetIsAccountedFor: decided events, those of aborted transactions and the markers of all transactions
// account for every offset, over restarts, and the progress comes to the end of the log, whatever is there. An event
// that did not reach the inbox is not accounted for: a line says so, and a doctor.
func TestP9_2_EveryOffsetIsAccountedFor(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db, topic := pgtest.NewDatabase(t, migrations.Inbox), kafkatest.Topic(t, 3)
	db.Exec(t, `create table effect (id uuid primary key, at bigint generated always as identity)`)
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Brokers(t)...), kgo.TransactionalID(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	write := func(n int, end kgo.TransactionEndTry) {
		t.Helper()
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := client.ProduceSync(t.Context(), &kgo.Record{
				Topic: topic, Partition: int32(i % 3), Key: []byte("k"), Value: fmt.Appendf(nil, "%d", i),
			}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	effects := 0
	for range 2 {
		for range 3 {
			produce(t, topic, effects, 9)
			write(9, kgo.TryCommit)
			write(6, kgo.TryAbort)
			effects += 18
		}
		consume(t, db, topic, effects)
	}

	said := &words{}
	in, err := inbox.New(db.Pool, "restored", inbox.Config{
		AllowShortWindow: true, Logger: slog.New(slog.NewTextHandler(said, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	h := leavesOut{in.Each(record), func(e *event.Event) bool { return e.Key == "key-7" }}
	c, err := consumer.New(h, kafkatest.Brokers(t), []string{topic}, consumer.Config{
		Group: topic, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	whileRunning(t, c, func() {
		awaitEffects(t, db, c, effects)
		write(6, kgo.TryAbort)
		awaitEnds(t, c, topic) // by answers without an event
		produce(t, topic, 0, 12)
		awaitEffects(t, db, c, effects+11)
		write(6, kgo.TryAbort)
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- in.Run(ctx) }()
		awaitProgress(t, db, topic)
		stop()
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
	})
	checkAccount(t, db, 1)
	if n := strings.Count(said.String(), "passed without being decided"); n != 1 {
		t.Errorf("%d lines, want 1", n)
	}
}
