package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// change is a statement of a business; a second one with the same number fails.
const change = "insert into paid (n) values ($1)"

// TestQueueInEveryMode: events that travel in a batch are stored as those that Append sends, in the order of the batch,
// and commit with it.
func TestQueueInEveryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(strings.ReplaceAll(mode.String(), " ", "_"), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, migrations.Outbox)
			db.Exec(t, "create table paid (n int primary key)")
			pool := poolIn(t, db, mode)
			var want []event.Event
			for i, n := range sizes {
				events := awkward(n + 1)
				inTx(t, pool, func(tx pgx.Tx) error {
					var b pgx.Batch
					b.Queue(change, i)
					for _, part := range [][]event.Event{events[:n], events[n:]} {
						if err := outbox.Queue(t.Context(), &b, part...); err != nil {
							return err
						}
					}
					b.Queue(change, -1-i)
					return tx.SendBatch(t.Context(), &b).Close()
				})
				want = append(want, events...)
				equal(t, stored(t, db), want)
			}
		})
	}
}

// TestQueuedBatchIsOneTransaction: without a transaction around it, a batch is one: a statement that fails takes the
// events along.
func TestQueuedBatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(strings.ReplaceAll(mode.String(), " ", "_"), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, migrations.Outbox)
			db.Exec(t, "create table paid (n int primary key)")
			pool := poolIn(t, db, mode)
			send := func(last int) error {
				var b pgx.Batch
				b.Queue(change, 1)
				if err := outbox.Queue(t.Context(), &b, awkward(3)...); err != nil {
					t.Fatal(err)
				}
				b.Queue(change, last)
				return pool.SendBatch(t.Context(), &b).Close()
			}
			for range 2 { // with the statements prepared, too
				var refused *pgconn.PgError
				if err := send(1); !errors.As(err, &refused) || refused.Code != "23505" {
					t.Fatalf("the batch's last statement should have failed: %v", err)
				}
				if got := stored(t, db); len(got) > 0 {
					t.Fatalf("%d events of a batch that failed", len(got))
				}
			}
			if err := send(2); err != nil {
				t.Fatal(err)
			}
			if got := stored(t, db); len(got) != 3 {
				t.Errorf("%d events stored, want 3", len(got))
			}
		})
	}
}

// TestQueueRefuses: a refused event leaves the batch as it was.
func TestQueueRefuses(t *testing.T) {
	t.Parallel()
	var b pgx.Batch
	b.Queue(change, 1)
	err := outbox.Queue(t.Context(), &b, event.Event{Topic: "t", Type: "T"}, event.Event{Topic: "no topic", Type: "T"})
	if refused, ok := errors.AsType[*outbox.EventError](err); !ok || refused.Index != 1 || refused.Field != "Topic" {
		t.Errorf("want event 1 refused for its topic, got %v", err)
	}
	if b.Len() != 1 {
		t.Errorf("%d statements queued, want the caller's own", b.Len())
	}
	if err := outbox.Queue(t.Context(), nil, event.Event{Topic: "t", Type: "T"}); err == nil ||
		!strings.Contains(err.Error(), "batch is nil") {
		t.Errorf("without a batch: %v", err)
	}
}

// TestQueueScheduled: what is to come later goes into its table, by the same batch.
func TestQueueScheduled(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	inTx(t, db.Pool, func(tx pgx.Tx) error {
		var b pgx.Batch
		if err := outbox.Queue(t.Context(), &b, event.Event{Topic: "t", Type: "Now"},
			event.Event{Topic: "t", Type: "Later", NotBefore: time.Now().Add(time.Hour)}); err != nil {
			return err
		}
		return tx.SendBatch(t.Context(), &b).Close()
	})
	for table, want := range map[string]string{"outbox_event": "Now", "outbox_scheduled": "Later"} {
		var got string
		if err := db.Pool.QueryRow(t.Context(), "select string_agg(type, ' ') from "+table).Scan(&got); err != nil ||
			got != want {
			t.Errorf("%s has %q, want %q: %v", table, got, want, err)
		}
	}
}
