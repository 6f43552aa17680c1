package inbox_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestRunningBatchIsSeen: while an effect runs, an operator sees in which partition, since when and in whose session;
// what the role may not see is not known, and not "none".
func TestRunningBatchIsSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(1)
	p := events[0].Position.Partition
	w.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset)
		values ('ledger', 'payments', $1, 0, 0), ('ledger', 'payments', $1 + 1, 0, 0), ('email', 'payments', $1, 0, 0)`, p)
	w.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('email', now(), 14)`)
	running, leave := make(chan struct{}), make(chan struct{})
	h := w.inbox(inbox.Config{}).Each(func(context.Context, pgx.Tx, event.Event) error {
		close(running)
		<-leave
		return nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := h.Handle(t.Context(), events)
		done <- err
	}()
	<-running
	cfg := w.Pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `set role pg_read_all_data`) // which sees no statistics of others
		return err
	}
	blind, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer blind.Close()
	batches := func(db *pgxpool.Pool) (list []*operator.Batch) {
		o, err := operator.New(db, w.Schema, "", "ada")
		if err != nil {
			t.Fatal(err)
		}
		all, err := o.Consumers(t.Context())
		if err != nil || len(all) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		for _, c := range all {
			for _, p := range c.Partitions {
				list = append(list, p.Batch)
			}
		}
		return list // email, and the two partitions of ledger
	}
	for name, c := range map[string]struct {
		db    *pgxpool.Pool
		known bool
	}{"who may": {w.Pool, true}, "who may not": {blind, false}} {
		got := batches(c.db)
		if got[0] != nil || got[1] == nil || got[2] != nil || (got[1].For >= 0) != c.known ||
			(got[1].By != "") != c.known {
			t.Errorf("%s: %+v of %v", name, got[1], got)
		}
	}
	close(leave)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := batches(w.Pool); got[1] != nil {
		t.Errorf("after the batch: %+v", got[1])
	}
}

// TestStartsAreCounted: a worker that something ends again and again shows in its starts, which do not grow for ever.
func TestStartsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	started := func() operator.ConsumerState {
		if err := w.inbox(inbox.Config{}).Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := w.operator().Consumers(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0]
	}
	started()
	host, _ := os.Hostname()
	if c := started(); c.Starts != 2 || c.StartsOn != host {
		t.Errorf("%d starts on %s, want 2 on %s", c.Starts, c.StartsOn, host)
	}
	for _, back := range []string{"6 min", "5 min"} {
		w.Exec(t, `update inbox_consumer set starts = (select jsonb_agg(value || jsonb_build_object('at',
			(value ->> 'at')::timestamptz - $1::text::interval)) from jsonb_array_elements(starts))`, back)
		if c := started(); c.Starts != 1 {
			t.Errorf("after %s: %d starts, want 1", back, c.Starts)
		}
	}
	if n := pgtest.One[int](t, w.DB, `select jsonb_array_length(starts) from inbox_consumer`); n != 2 {
		t.Errorf("%d starts are kept, want 2: of the last ten minutes", n)
	}
}
