package relay_test

import (
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestWAL5PublicationIsRecreated: rows inserted while the publication did not exist can never be decoded for it. They
// are published from the table, and another slot is made.
func TestWAL5PublicationIsRecreated(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	appendTo(t, db, "payments", 100, 10, 0)
	awaitDrained(t, db)
	db.Exec(t, `drop publication `+slot)
	appendTo(t, db, "payments", 100, 10, 10)
	awaitDrained(t, db)
	undecoded := pgtest.One[string](t, db, `select pg_current_wal_insert_lsn()::text`)
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	// Lanes may be handed over to the old slot before its next failure shows that it cannot be decoded.
	pgtest.AwaitSQL(t, db, `select (select count(*) = 32 from outbox_streamed)
		and (select confirmed >= $1::text::pg_lsn from outbox_wal)`, undecoded)
	appendTo(t, db, "payments", 100, 10, 20)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	checkOrder(t, log, 300)
	if n := fromLog(t, log[200:]); n != 100 {
		t.Errorf("%d of the last 100 events came from the WAL", n)
	}
}

// TestWALAddedColumns: columns that were added to the table are ignored, also those of a type without a binary form.
func TestWALAddedColumns(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	db.Exec(t,
		`alter table outbox_event add column mine aclitem default 'postgres=r/postgres', add column shard integer default 7`)
	appendTo(t, db, "payments", 100, 10, 0)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	checkOrder(t, log, 100)
	if n := fromLog(t, log); n != 100 {
		t.Errorf("%d events came from the WAL, want all", n)
	}
}

// TestWALUnreadableColumn: a column differs from the one of the migrations, and cannot be read from the WAL. Another
// slot does not help, so the relay does not make one again and again: events are published from the table.
func TestWALUnreadableColumn(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	r := newRelay(t, db, to, config(fromWAL))
	stop := startRelay(t, r)
	awaitStreaming(t, db)
	db.Exec(t, `alter table outbox_event alter column created_at type date`)
	for from := 0; from < 30; from += 10 {
		appendTo(t, db, "payments", 100, 10, from)
		awaitDrained(t, db)
	}
	pgtest.Await(t, "a reason", func() (bool, error) {
		err := r.WALUnavailable()
		if err == nil {
			appendTo(t, db, "others", 1, 1, 0)
		}
		return err != nil && strings.Contains(err.Error(), "another slot was made"), nil
	})
	if n := pgtest.One[int](t, db,
		`select count(*) from pg_replication_slots s join outbox_wal w on w.slot = s.slot_name`); n != 1 {
		t.Errorf("%d slots", n)
	}
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
