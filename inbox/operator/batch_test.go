package operator_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestBatchThatHoldsOthersUp: an effect that waits, on another connection, for its own transaction is told by that.
func TestBatchThatHoldsOthersUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('c', now(), 3)`)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset)
		values ('c', 't', 0, 1, 2)`)
	db.Exec(t, `create table sum (n int); insert into sum values (0)`)
	tx := db.Begin(t)
	var got bool
	if err := tx.QueryRow(t.Context(), `select pg_try_advisory_xact_lock_shared(hashtextextended('c t/0',
		'inbox_progress'::regclass::oid::bigint))`).Scan(&got); err != nil || !got {
		t.Fatal(got, err)
	}
	if _, err := tx.Exec(t.Context(), `update sum set n = n + 1`); err != nil {
		t.Fatal(err)
	}
	second := db.Connect(t)
	pid, done := second.PgConn().PID(), make(chan error, 1)
	go func() {
		_, err := second.Exec(t.Context(), `update sum set n = n + 1`)
		done <- err
	}()
	o, err := operator.New(db.Pool, db.Schema, "c", "test")
	if err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitBlocked(t, db, pid)
	list, err := o.Consumers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if b := list[0].Partitions[0].Batch; b == nil ||
		!strings.HasSuffix(b.By, fmt.Sprintf("outside of Postgres, holding up pid %d", pid)) {
		t.Errorf("of an effect that holds itself up is said: %+v", b)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
