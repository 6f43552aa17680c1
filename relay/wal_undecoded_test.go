package relay_test

import (
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestWAL5PublicationIsRecreated: what was inserted while the publication was missing cannot be decoded for it,
// however often it is tried: it is published from the table, and another slot is made.
func TestWAL5PublicationIsRecreated(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(fromWAL)))
	streaming(t, db)
	appendTo(t, db, "payments", 100, 10, 0)
	drained(t, db)
	db.Exec(t, `drop publication `+slot)
	appendTo(t, db, "payments", 100, 10, 10)
	drained(t, db)
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	streaming(t, db)
	appendTo(t, db, "payments", 100, 10, 20)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	inOrder(t, log, 300)
	if n := fromLog(t, log[200:]); n != 100 {
		t.Errorf("%d of the last 100 events came from the WAL", n)
	}
}

// TestWALAddedColumns: a column that somebody has added is passed over, also one whose type has no binary form.
func TestWALAddedColumns(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(fromWAL)))
	streaming(t, db)
	db.Exec(t,
		`alter table outbox_event add column mine aclitem default 'postgres=r/postgres', add column shard integer default 7`)
	appendTo(t, db, "payments", 100, 10, 0)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	inOrder(t, log, 100)
	if n := fromLog(t, log); n != 100 {
		t.Errorf("%d events came from the WAL, want all", n)
	}
}

// TestWALUnreadableColumn: a column that is not as the migrations made it cannot be read from the WAL. Another slot
// does not help, and none is made again and again: events come from the table.
func TestWALUnreadableColumn(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	r := newRelay(t, db, to, config(fromWAL))
	stop := running(t, r)
	streaming(t, db)
	db.Exec(t, `alter table outbox_event alter column created_at type date`)
	for from := 0; from < 30; from += 10 {
		appendTo(t, db, "payments", 100, 10, from)
		drained(t, db)
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
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
