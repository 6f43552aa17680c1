package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// ledger is the consumers' side of an upgrade: one database, and one group whose members change.
type ledger struct {
	*pgtest.DB
	t       *testing.T
	brokers []string
	topic   string
}

func newLedger(t *testing.T, topic string) *ledger {
	t.Helper()
	l := &ledger{pgtest.New(t, "inbox"), t, kafkatest.Brokers(t), topic}
	l.Exec(t, "create table effect (i bigint generated always as identity, key text not null, n text not null)")
	return l
}

// member starts a worker; stop ends it cleanly.
func (l *ledger) member() (stop func()) {
	l.t.Helper()
	in, err := inbox.New(l.Pool, "ledger", inbox.Config{
		Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1,
		MaintainEvery: 100 * time.Millisecond,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	h := in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		var keys, values []string
		for _, e := range events {
			keys, values = append(keys, e.Key), append(values, string(e.Payload))
		}
		_, err := tx.Exec(ctx, "insert into effect (key, n) select k, n from unnest($1::text[], $2::text[]) with "+
			"ordinality t (k, n, o) order by o", keys, values)
		return err
	})
	c, err := consumer.New(h, l.brokers, []string{l.topic}, consumer.Config{
		Group: "ledger-" + l.topic, Batch: 50, SessionTimeout: 6 * time.Second,
		HeartbeatInterval: 200 * time.Millisecond, RebalanceTimeout: 8 * time.Second,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	ended := false
	stop = func() {
		if cancel(); !ended {
			ended = true
			if err := g.Wait(); err != nil {
				l.t.Errorf("a worker ended: %v", err)
			}
		}
	}
	l.t.Cleanup(stop)
	return stop
}

func (l *ledger) count() int { return pgtest.One[int](l.t, l.DB, "select count(*) from effect") }

// awaitEffects waits until more effects have been applied.
func (l *ledger) awaitEffects(more int) {
	l.t.Helper()
	before := l.count()
	pgtest.AwaitSQL(l.t, l.DB, "select count(*) >= $1 from effect", before+more)
}

// inventNextVersion migrates the inbox's tables under load, and creates and drops a partition.
func (l *ledger) inventNextVersion() {
	l.t.Helper()
	list, err := migrations.Applied(l.t.Context(), l.Pool, migrations.Options{Sets: []migrations.Set{migrations.Inbox}})
	if err != nil {
		l.t.Fatal(err)
	}
	last := list[len(list)-1].Version
	for n, sql := range []string{
		`alter table inbox_message add column invented text not null default 'x'; alter table inbox_message_any add column invented int`,
		`alter table inbox_progress add column invented int default 1; alter table inbox_parked add column invented int; alter table inbox_parked_key add column invented int`,
		`create table inbox_message_invented (like inbox_message including all);
			alter table inbox_message attach partition inbox_message_invented for values from ('ffffffff-0000-7000-8000-000000000000') to ('ffffffff-f000-7000-8000-000000000000')`,
	} {
		migrateByHand(l.t, l.DB, sql, last+1+int64(n))
	}
	l.awaitEffects(1)
	// A worker that maintains its days may finalize the pending detach first, because Postgres allows only one.
	_, err = l.Pool.Exec(l.t.Context(), "alter table inbox_message detach partition inbox_message_invented "+
		"concurrently")
	if err != nil && !pgerr.Is(err, pgerr.UndefinedTable) {
		l.t.Fatalf("detaching: %v", err)
	}
	l.Exec(l.t, "drop table inbox_message_invented")
}

// judge waits for all effects, and checks that each was applied once and in the order of its key.
func (l *ledger) judge(appended int) {
	l.t.Helper()
	pgtest.AwaitSQL(l.t, l.DB, "select count(*) >= $1 from effect", appended)
	rows, err := l.Pool.Query(l.t.Context(), "select key, n from effect order by i")
	if err != nil {
		l.t.Fatal(err)
	}
	next, total := map[string]int{}, 0
	var key, n string
	_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error {
		if got := mustAtoi(l.t, n); got != next[key] {
			return fmt.Errorf("key %s: effect of %d where %d was due", key, got, next[key])
		}
		next[key]++
		total++
		return nil
	})
	if err != nil || total != appended {
		l.t.Errorf("%d effects of %d appended events: %v", total, appended, err)
	}
}
