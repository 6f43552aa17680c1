package relay_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay"
)

// Numbers of the WAL last for 256 TiB, which no test writes; here they last for less.

// numbersDB is an outbox in a server in which nobody else writes.
func numbersDB(t *testing.T) *pgtest.DB {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server")
	}
	db := pgtest.NewServer(t).Database(t, migrations.Outbox)
	if _, err := relay.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	return db
}

// emitting starts a relay that takes emitted events and whose numbers last for so many bytes.
func emitting(t *testing.T, db *pgtest.DB, to relay.Publisher, span int64) (stop func() error) {
	t.Helper()
	r := newRelay(t, db, to, config(emitted))
	relay.LowerSpan(r, span)
	return running(t, r)
}

// used is how many bytes of a base's numbers are used.
func used(t *testing.T, db *pgtest.DB) int64 {
	t.Helper()
	return pgtest.One[int64](t, db, `select (pg_current_wal_insert_lsn() - base)::bigint from outbox_wal`)
}

// noise writes WAL that is nobody's event.
func noise(t *testing.T, db *pgtest.DB) {
	t.Helper()
	db.Exec(t, `create table noise as select repeat('x', 100) from generate_series(1, 20000)`)
}

// TestEmitNumbersEndMeanwhile: while producers emit, the numbers come to their end. What was emitted before has a number of the old base; what
// has none becomes rows; lanes that nothing comes for do not keep the others; then another slot is read, under another numbering, and producers
// emit again.
func TestEmitNumbersEndMeanwhile(t *testing.T) {
	t.Parallel()
	db := numbersDB(t)
	to := &memory{}
	const span = 2_000_000
	stop := emitting(t, db, to, span)
	open(t, db)
	first := pgtest.One[string](t, db, `select base::text from outbox_wal`)
	const keys = 8 // of fewer lanes than there are
	from := 0
	for ; used(t, db) < span/2; from += 3 {
		produce(t, db, keys, from, from+3, everyThird)
	}
	arrived(t, to, keys*from)
	if n := pgtest.One[int](t, db, `select incarnation from outbox_meta`); n != 1 {
		t.Fatalf("incarnation %d before the end", n)
	}
	noise(t, db)
	pgtest.Await(t, "another base", func() (bool, error) {
		produce(t, db, keys, from, from+3, everyThird)
		from += 3
		return pgtest.One[string](t, db, `select base::text from outbox_wal`) != first, nil
	})
	open(t, db)
	produce(t, db, keys, from, from+3, always)
	from += 3
	arrived(t, to, keys*from)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	inOrder(t, log, keys*from)
	applied(t, log, keys*from)
	if n := byNumber(t, log); n < 2 {
		t.Errorf("%d numberings", n)
	}
	if p := log[len(log)-1].Position; p.Lane != -1 || p.Seq <= 0 {
		t.Errorf("the last event has position %+v", p)
	}
}

// TestEmitNumbersEndAtAStart: a relay that begins when few numbers are left publishes what was emitted, under the numbering that there is, and has
// producers insert; the next one begins another.
func TestEmitNumbersEndAtAStart(t *testing.T) {
	t.Parallel()
	db := numbersDB(t)
	to := &memory{}
	stop := emitting(t, db, to, 1<<40)
	open(t, db)
	produce(t, db, 20, 0, 10, everyThird)
	arrived(t, to, 200) // of a transaction that is half read, the one half would come again
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	noise(t, db)
	produce(t, db, 20, 10, 20, everyThird)
	span := used(t, db) / 4 * 5
	stop = emitting(t, db, to, span)
	pgtest.AwaitSQL(t, db, `select count(*) = 32 from outbox_streamed where emitted = 'none'`)
	rows := 0
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		for k := range 20 {
			if err := outbox.Emit(t.Context(), tx, event.Event{Topic: "payments", Key: fmt.Sprint("k", k), Type: "T", Payload: []byte("20")}); err != nil {
				return err
			}
		}
		return tx.QueryRow(t.Context(), `select count(*) from outbox_event where payload = '20'`).Scan(&rows)
	}); err != nil || rows != 20 {
		t.Errorf("%d rows: producers still emit; %v", rows, err)
	}
	arrived(t, to, 420)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := byNumber(t, to.events()); n != 1 {
		t.Errorf("%d numberings before the next start", n)
	}
	stop = emitting(t, db, to, span)
	open(t, db)
	produce(t, db, 20, 21, 25, everyThird)
	arrived(t, to, 500)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if dup := inOrder(t, log, 500); dup != 0 {
		t.Errorf("%d events were published twice", dup)
	}
	applied(t, log, 500)
	if n := byNumber(t, log); n != 2 {
		t.Errorf("%d numberings, want 2: %s", n, fmt.Sprint(log[0].Position, log[len(log)-1].Position))
	}
}
