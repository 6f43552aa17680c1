package relay_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestP3_3_Phantom: a producer commits without waiting for the disk, the relay publishes, and the server crashes. The
// published event must survive: the claim's own COMMIT has flushed it.
func TestP3_3_Phantom(t *testing.T) {
	t.Parallel()
	db, server := asyncServer(t)
	f := driven(t, db) // without heartbeats, whose COMMIT would flush
	asyncPay(t, db)
	if n, err := f.Step(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d events published: %v", n, err)
	}
	crash(t, db, server)
	if n := pgtest.One[int](t, db, `select count(*) from payment`); n != 1 {
		t.Errorf("an event was published, but its payment is gone")
	}
}

// TestP3_3_PhantomWithoutBarrier shows that TestP3_3_Phantom can fail: a reader without a durable COMMIT sees the row,
// and the crash undoes it.
func TestP3_3_PhantomWithoutBarrier(t *testing.T) {
	t.Parallel()
	db, server := asyncServer(t)
	asyncPay(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 1 {
		t.Fatalf("%d events are visible", n)
	}
	crash(t, db, server)
	if n := pgtest.One[int](t, db, `select count(*) from payment`); n != 0 {
		t.Error("the server flushed the commit by itself before it was killed: TestP3_3_Phantom proves nothing")
	}
}

// asyncServer starts a server whose WAL writer is stopped, so that an asynchronous commit stays in memory.
func asyncServer(t *testing.T) (*pgtest.DB, *pgtest.Server) {
	t.Helper()
	server := pgtest.NewServer(t)
	db := server.Database(t, migrations.Outbox)
	db.Exec(t, `create table payment (id int)`)
	db.Exec(t, `alter system set autovacuum = off`)
	db.Exec(t, `alter system set bgwriter_lru_maxpages = 0`) // before it writes a page, it flushes the WAL
	// A reload would not end a worker of autovacuum, whose COMMIT flushes the WAL. The shutdown writes all pages.
	server.Restart(t)
	db.Pool.Reset()
	server.PauseWALWriter(t)
	return db, server
}

func asyncPay(t *testing.T, db *pgtest.DB) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `select set_config('synchronous_commit', 'off', true)`)
		if err == nil {
			_, err = tx.Exec(t.Context(), `insert into payment values ($1)`, 1)
		}
		if err == nil {
			_, err = tx.Exec(t.Context(), `insert into outbox_event (topic, key, type) values ('payments', 'k', $1)`,
				"T")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func crash(t *testing.T, db *pgtest.DB, server *pgtest.Server) {
	t.Helper()
	server.Kill()
	db.Pool.Reset() // its connections are dead, and it does not know
	server.Start(t)
	pgtest.Await(t, "a connection to the restarted server",
		func() (bool, error) { return db.Pool.Ping(t.Context()) == nil, nil })
}

// TestP3LostSettle: a settle does not wait for the disk, and the server crashes. Its entries and events are back, and
// are published again under their numbers although none of the relay's claims failed.
func TestP3LostSettle(t *testing.T) {
	if testing.Short() {
		t.Skip("restarts a server")
	}
	t.Parallel()
	db, server := asyncServer(t)
	f := driven(t, db)
	var done int
	for round := range 3 { // a lane's second claim flushes the settle of its first
		fillFrom(t, db, 10*round, 10)
		n, err := f.Step(t.Context())
		f.must(err)
		done += n
	}
	if left := pgtest.One[int](t, db, `select count(*) from outbox_event`); left != 0 || done != 600 {
		t.Fatalf("%d events are left, %d are published", left, done)
	}
	crash(t, db, server)
	back := pgtest.One[int](t, db, `select count(*) from outbox_event`)
	if back == 0 {
		t.Fatal("the server flushed the settles by itself before it was killed: the test proves nothing")
	}
	f.must(f.Reconnect(t.Context()))
	fillFrom(t, db, 30, 1)
	for range 3 {
		_, err := f.Step(t.Context())
		f.must(err)
	}
	checkNumbers(t, f.to.events())
	if dup := checkOrder(t, f.to.events(), 620); dup != back {
		t.Errorf("%d events were published again, %d are back", dup, back)
	}
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_event) + (select count(*) from outbox_claim)`); n != 0 {
		t.Errorf("%d events or entries are left", n)
	}
}
