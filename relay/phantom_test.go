package relay_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestP3_3_Phantom: a producer commits without waiting for the disk, the relay publishes, the server crashes. What is
// published must have survived: the claim's own commit put it on the disk first.
func TestP3_3_Phantom(t *testing.T) {
	t.Parallel()
	db, server := asyncServer(t)
	f := driven(t, db) // no heartbeat's commit comes between: the claim's own must do it
	asyncPay(t, db)
	if n, err := f.Step(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d events published: %v", n, err)
	}
	crash(t, db, server)
	if n := pgtest.One[int](t, db, `select count(*) from payment`); n != 1 {
		t.Errorf("an event was published whose payment is gone")
	}
}

// TestP3_3_PhantomWithoutBarrier shows that the test above can fail: a reader that does not commit anything
// durable sees the row, and the crash takes it back.
func TestP3_3_PhantomWithoutBarrier(t *testing.T) {
	t.Parallel()
	db, server := asyncServer(t)
	asyncPay(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 1 {
		t.Fatalf("%d events are visible", n)
	}
	crash(t, db, server)
	if n := pgtest.One[int](t, db, `select count(*) from payment`); n != 0 {
		t.Error("the server had written the commit by itself before it was killed: the test above shows nothing")
	}
}

// asyncServer is a server whose WAL writer stands still, so that an asynchronous commit stays in memory.
func asyncServer(t *testing.T) (*pgtest.DB, *pgtest.Server) {
	t.Helper()
	server := pgtest.NewServer(t)
	db := server.Database(t, migrations.Outbox)
	db.Exec(t, `create table payment (id int)`)
	db.Exec(t, `alter system set autovacuum = off`)
	db.Exec(t, `select pg_reload_conf()`)
	db.Exec(t, `checkpoint`)
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
	db.Pool.Reset() // its connections are dead and do not know it
	server.Start(t)
	pgtest.Await(t, "a connection to the server that is back",
		func() (bool, error) { return db.Pool.Ping(t.Context()) == nil, nil })
}

// TestP3LostSettle: a settle does not wait for the disk, and the server crashes: its entries and its events are back.
// They are published again under the numbers that they had, although no claim of theirs has failed.
func TestP3LostSettle(t *testing.T) {
	if testing.Short() {
		t.Skip("restarts a server")
	}
	t.Parallel()
	db, server := asyncServer(t)
	f := driven(t, db)
	var done int
	for round := range 3 { // a lane's first claim comes with a second one, whose commit brings its settle to the disk
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
		t.Fatal("the server had written the settles by itself before it was killed: this shows nothing")
	}
	f.must(f.Reconnect(t.Context()))
	fillFrom(t, db, 30, 1)
	for range 3 {
		_, err := f.Step(t.Context())
		f.must(err)
	}
	numbered(t, f.to.events())
	if dup := inOrder(t, f.to.events(), 620); dup != back {
		t.Errorf("%d events were published again, %d are back", dup, back)
	}
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_event) + (select count(*) from outbox_claim)`); n != 0 {
		t.Errorf("%d events or entries are left", n)
	}
}
