package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// floors drives a relay step by step.
type floors struct {
	*relay.Driver
	t  *testing.T
	db *pgtest.DB
	to *memory
}

func driven(t *testing.T, db *pgtest.DB, change ...func(*relay.Config)) *floors {
	t.Helper()
	to := &memory{}
	r := newRelay(t, db, to, config(append([]func(*relay.Config){func(c *relay.Config) {
		c.FloorEvery, c.RescanEvery = 1, -1
		c.Lease = time.Hour // no heartbeat between the steps
	}}, change...)...))
	d, err := relay.Drive(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return &floors{Driver: d, t: t, db: db, to: to}
}

func (f *floors) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// drain publishes all events of the outbox.
func (f *floors) drain() {
	f.t.Helper()
	for {
		n, err := f.Step(f.t.Context())
		f.must(err)
		if n == 0 {
			return
		}
	}
}

// riseFully runs as many steps of the floor as raising one can need, with durable commits in between.
func (f *floors) riseFully() {
	f.t.Helper()
	for range 8 {
		f.must(f.FloorStep(f.t.Context()))
		f.must(f.Beat(f.t.Context()))
	}
}

// at checks the floor of most lanes: all lanes without a row have the same one.
func (f *floors) at(want int64, why string) {
	f.t.Helper()
	_, all, _ := f.Floors()
	if slices.Max(all) != want {
		f.t.Fatalf("the highest floor is %d, want %d: %s", slices.Max(all), want, why)
	}
}

func (f *floors) begin(db *pgtest.DB, sql ...string) *pgx.Conn {
	f.t.Helper()
	conn := db.Connect(f.t)
	for _, s := range append([]string{"begin"}, sql...) {
		_, err := conn.Exec(f.t.Context(), s)
		f.must(err)
	}
	return conn
}

func (f *floors) exec(conn *pgx.Conn, sql string) {
	f.t.Helper()
	_, err := conn.Exec(f.t.Context(), sql)
	f.must(err)
}

const insertOne = `insert into outbox_event (topic, key, type, payload) values ('payments', 'slow', 'T', '0')`

// TestP6ProbePlannedOverNothing: a relay plans its probe once, over an outbox that vacuum has recorded as empty. The
// plan must not read the whole table for each lane when a backlog has come.
func TestP6ProbePlannedOverNothing(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, `vacuum outbox_event`)
	lanes, floors, ids := f.Floors()
	tx, end := f.planned("probe")
	defer end()
	f.read(tx, lanes, "3 s", floors, ids, []int16{})
	fill(t, f.db, 20_000, 200)
	if n := f.read(tx, lanes, "3 s", floors, ids, []int16{}); n > 500 {
		t.Errorf("a probe of %d lanes reads %d pages", len(lanes), n)
	}
}

// TestP6FloorKeepsProbesFlat: a snapshot stays open, so that vacuum cannot remove published rows. A probe or a claim
// reads none of the 50,000 dead rows; with the floor at zero it reads thousands of pages.
func TestP6FloorKeepsProbesFlat(t *testing.T) {
	if testing.Short() {
		t.Skip("makes many dead rows")
	}
	t.Parallel()
	f := driven(t, outboxDB(t))
	pin := f.begin(f.db, `set transaction isolation level repeatable read`, `select count(*) from outbox_event`)
	fill(t, f.db, 50_000, 200)
	f.drain()
	f.riseFully()
	f.at(50_000, "everything is published")
	lanes, found, ids := f.Floors()
	zero := make([]int64, len(lanes))
	owner := pgtest.One[string](t, f.db, `select min(owner::text) from outbox_lane`)
	look := func(floors []int64) int { return f.pages("probe", lanes, "3 s", floors, ids, []int16{}) }
	claim := func(floors []int64) int {
		return f.pages("take", lanes, f.Fences(lanes), owner, zero, 250, 1<<20, 512, 1<<20, floors, ids,
			upperBounds(lanes))
	}
	bulk := func(floors []int64) int {
		return f.pages("read", lanes, f.Fences(lanes), owner, zero, int64(1)<<40, floors, ids, 2000, 100_000)
	}
	// Vacuum cannot remove the rows, and records the table as empty: plans must not get worse.
	f.db.Exec(t, `vacuum outbox_event`)
	f.db.Exec(t,
		`insert into outbox_claim select 0, 1 << 20, array_agg(g), array_agg(g) from generate_series(50001, 50020) g`)
	if n := f.pages("settle", lanes[:1], f.Fences(lanes[:1]), owner, []int64{1 << 20}); n > 400 {
		t.Errorf("a settle of 20 events reads %d pages", n)
	}
	f.db.Exec(t, `delete from outbox_claim`)
	sample := func(floors []int64) int { return f.pages("sampleEvents", relay.SampleLimit, lanes, floors, ids, "3 s") }
	for name, pages := range map[string]func([]int64) int{
		"look": look, "claim": claim, "bulk": bulk,
		"sample": sample,
	} {
		// Even from zero, a bulk read visits each page once.
		if flat, full := pages(found), pages(zero); flat > 1000 || (full < 10*flat && name != "bulk") || full < flat ||
			(name == "look" && flat > 100) {
			t.Errorf("a %s reads %d pages from the floor and %d from zero", name, flat, full)
		} else {
			t.Logf("a %s reads %d pages from the floor and %d from zero", name, flat, full)
		}
	}
	fill(t, f.db, 100, 10)
	f.drain()
	if n := f.to.count(); n != 50_100 {
		t.Errorf("%d events published", n)
	}
	f.exec(pin, "commit")
}

// TestP6SettledEntriesKeepClaimsFlat: under a pinned snapshot the journal's settled entries also stay. A claim does not
// read them.
func TestP6SettledEntriesKeepClaimsFlat(t *testing.T) {
	if testing.Short() {
		t.Skip("makes many dead rows")
	}
	t.Parallel()
	f := driven(t, outboxDB(t))
	pin := f.begin(f.db, `set transaction isolation level repeatable read`, `select count(*) from outbox_claim`)
	f.db.Exec(t, `insert into outbox_claim select g % 32, g / 32, array[g], array[g] from generate_series(1, 64000) g`)
	f.db.Exec(t, `delete from outbox_claim`)
	lanes, floors, ids := f.Floors()
	owner := pgtest.One[string](t, f.db, `select min(owner::text) from outbox_lane`)
	epoch := pgtest.One[string](t, f.db, `select outbox_id::text || '.' || incarnation from outbox_meta`)
	claim := func(from int64) int {
		nexts := make([]int64, len(lanes))
		for i := range nexts {
			nexts[i] = from
		}
		read := f.pages("read", lanes, f.Fences(lanes), owner, nexts, int64(1)<<40, floors, ids, 2000, 100_000)
		return max(read, f.pages("take", lanes, f.Fences(lanes), owner, nexts, 250, 1<<20, 512, 1<<20, floors, ids,
			upperBounds(lanes)))
	}
	settled := make([]int64, len(lanes))
	for i := range settled {
		settled[i] = 1999 // each lane's last entry
	}
	f.db.Exec(t, `vacuum outbox_claim`) // removes no row, and records the table as empty
	if n := f.pages("asKnown", lanes, f.Fences(lanes), owner, settled, epoch); n > 400 {
		t.Errorf("the check for a settle that was undone reads %d pages", n)
	}
	rescan := func(firsts []int64) int { return f.pages("unsettled", lanes, firsts) }
	if flat, full := rescan(settled), rescan(make([]int64, len(lanes))); flat > 400 || full < 10*flat {
		t.Errorf("a rescan reads %d pages of the journal, and %d from zero", flat, full)
	}
	if flat, full := claim(1<<20), claim(0); flat > 500 || full < 10*flat {
		t.Errorf("a claim reads %d pages from its next number on, and %d of the whole journal", flat, full)
	}
	f.exec(pin, "commit")
}

// upperBounds returns upper bounds that exclude no id.
func upperBounds(lanes []int16) (ids []int64) {
	for range lanes {
		ids = append(ids, math.MaxInt64)
	}
	return ids
}

// pages returns the number of buffers that a statement reads, under the settings that the relay sends before it.
func (f *floors) pages(query string, args ...any) int {
	f.t.Helper()
	tx, end := f.planned(query)
	defer end()
	return f.read(tx, args...)
}

// planned prepares a statement as the relay does, in a transaction that end rolls back.
func (f *floors) planned(query string) (tx pgx.Tx, end func()) {
	f.t.Helper()
	tx, err := f.db.Pool.Begin(f.t.Context())
	f.must(err)
	switch query {
	case "probe":
		_, err = tx.Exec(f.t.Context(), relay.ProbeSettings)
	case "waits":
		_, err = tx.Exec(f.t.Context(), relay.WaitsSettings)
	default:
		_, err = tx.Exec(f.t.Context(), relay.Expanded(f.t, "settings"), "on", "60000", "20000")
	}
	f.must(err)
	if query == "read" {
		_, err = tx.Exec(f.t.Context(), relay.Expanded(f.t, "readSettings"))
		f.must(err)
	}
	_, err = tx.Exec(f.t.Context(), "prepare planned as "+relay.Expanded(f.t, query), pgx.QueryExecModeSimpleProtocol)
	f.must(err)
	return tx, func() {
		_, err := tx.Exec(f.t.Context(), "deallocate planned")
		f.must(errors.Join(err, tx.Rollback(context.WithoutCancel(f.t.Context()))))
	}
}

// read executes the prepared statement, and returns the number of buffers that it reads: the least of three, because
// the first run reads outbox_server's definition into the session's caches, and so does a run after another test's DDL.
func (f *floors) read(tx pgx.Tx, args ...any) int {
	f.t.Helper()
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	values := make([]string, len(args))
	for i, arg := range args {
		values[i] = f.literal(arg)
	}
	planned := "planned"
	if len(args) > 0 {
		planned += "(" + strings.Join(values, ", ") + ")"
	}
	least := math.MaxInt
	for range 3 {
		var text []byte
		inner, err := tx.Begin(f.t.Context())
		f.must(err)
		f.must(inner.QueryRow(f.t.Context(), "explain (analyze, buffers, format json) execute "+planned,
			pgx.QueryExecModeSimpleProtocol).Scan(&text))
		f.must(inner.Rollback(f.t.Context()))
		f.must(json.Unmarshal(text, &plan))
		least = min(least, plan[0].Plan.Hit+plan[0].Plan.Read)
	}
	return least
}

// literal formats a value for a statement.
func (f *floors) literal(v any) string {
	f.t.Helper()
	if v == nil {
		return "null"
	}
	if n, ok := v.(int); ok {
		return strconv.Itoa(n)
	}
	types := pgtype.NewMap()
	typ, ok := types.TypeForValue(v)
	if !ok {
		f.t.Fatalf("no Postgres type for %T", v)
	}
	text, err := types.Encode(typ.OID, pgtype.TextFormatCode, v, nil)
	f.must(err)
	return "'" + strings.ReplaceAll(string(text), "'", "''") + "'"
}

func TestP6FloorWaitsForOpenInserts(t *testing.T) {
	t.Parallel()
	t.Run("an open transaction", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		slow := f.begin(f.db, insertOne)
		fill(t, f.db, 10, 10)
		f.drain()
		f.riseFully()
		f.at(0, "the transaction that drew id 1 is open")
		f.exec(slow, "commit")
		f.riseFully()
		f.at(11, "the transaction has ended")
		f.drain()
		if n := f.to.count(); n != 11 {
			t.Errorf("%d events published, want 11", n)
		}
	})
	t.Run("a prepared transaction, which changes its name", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		gid := f.db.Schema
		slow := f.begin(f.db, insertOne)
		fill(t, f.db, 10, 10)
		f.drain()
		f.must(f.FloorStep(t.Context()))
		f.must(f.FloorStep(t.Context()))
		f.exec(slow, "prepare transaction '"+gid+"'")
		f.riseFully()
		f.at(0, "the transaction that drew id 1 is prepared")
		f.exec(slow, "commit prepared '"+gid+"'")
		f.riseFully()
		f.at(11, "the transaction has ended")
		f.drain()
		if n := f.to.count(); n != 11 {
			t.Errorf("%d events published, want 11", n)
		}
	})
	t.Run("a prepared transaction, whose name a crash has changed", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		slow := f.begin(f.db, insertOne, "prepare transaction '"+f.db.Schema+"'")
		t.Cleanup(func() { _, _ = slow.Exec(context.Background(), "rollback prepared '"+f.db.Schema+"'") })
		f.must(f.FloorStep(t.Context()))
		f.must(f.FloorStep(t.Context()))
		if n := f.Renamed(); n != 1 {
			t.Fatalf("floors wait for %d transactions", n)
		}
		f.riseFully()
		f.at(0, "the transaction that drew id 1 is still prepared")
		f.exec(slow, "commit prepared '"+f.db.Schema+"'")
		f.riseFully()
		f.drain()
		if n := f.to.count(); n != 1 {
			t.Errorf("%d events published, want 1", n)
		}
	})
	t.Run("one after the other is prepared", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		gid := f.db.Schema
		first := f.begin(f.db, insertOne, "prepare transaction '"+gid+"'")
		f.must(f.FloorStep(t.Context()))
		f.must(f.FloorStep(t.Context()))
		f.begin(f.db, insertOne, "prepare transaction '"+gid+" 2'")
		t.Cleanup(func() { _, _ = first.Exec(context.Background(), "rollback prepared '"+gid+" 2'") })
		f.riseFully()
		f.at(0, "the transaction that drew id 1 is prepared")
		f.exec(first, "rollback prepared '"+gid+"'")
		f.riseFully()
		f.at(1, "the transaction that drew id 1 has ended")
	})
	t.Run("a subtransaction", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		slow := f.begin(f.db, "savepoint s", insertOne, "release savepoint s")
		f.riseFully()
		f.at(0, "its transaction is open")
		f.exec(slow, "rollback")
		f.riseFully()
		f.at(1, "the transaction has ended")
	})
	t.Run("a rolled-back savepoint", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		f.begin(f.db, "savepoint s", insertOne, "rollback to savepoint s")
		f.riseFully()
		f.at(1, "the row is dead, whether its transaction commits or not")
	})
	t.Run("not a transaction elsewhere or in another database", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		other := pgtest.NewDatabase(t, migrations.Outbox)
		f.begin(other, insertOne)
		f.begin(f.db, "create table unrelated (x int)", "insert into unrelated values (1)")
		fill(t, f.db, 10, 10)
		f.drain()
		f.riseFully()
		f.at(10, "no open transaction could have drawn an id")
	})
	t.Run("not a vacuum, an analyze or a new index", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		fill(t, f.db, 10, 10)
		f.drain()
		f.begin(f.db, "lock table outbox_event in share update exclusive mode")
		f.riseFully()
		f.at(10, "a holder of this lock has drawn no id")
	})
	t.Run("with any other lock", func(t *testing.T) {
		t.Parallel()
		for _, mode := range []string{"share update exclusive", "share row exclusive", "exclusive"} {
			f := driven(t, outboxDB(t))
			f.begin(f.db, "lock table outbox_event in "+mode+" mode", insertOne)
			f.riseFully()
			f.at(0, "the transaction that drew id 1 is open, and has a stronger lock")
		}
	})
	t.Run("a durable commit", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		// The transaction that reads the highest id shall have nothing to lock.
		f.db.Exec(t, "delete from relay_member")
		fill(t, f.db, 10, 10)
		for range 8 {
			f.must(f.FloorStep(t.Context()))
		}
		f.at(0, "a COMMIT without writes waits for no flush: a crash could set the sequence back")
		f.must(f.Beat(t.Context()))
		f.must(f.FloorStep(t.Context()))
		conn := f.db.Connect(t)
		_, err := conn.Exec(t.Context(), "set synchronous_commit = off")
		f.must(err)
		_, err = conn.Exec(t.Context(), insertOne)
		f.must(err)
		var drawn string
		f.must(conn.QueryRow(t.Context(), "select pg_current_wal_insert_lsn()").Scan(&drawn))
		for range 3 { // one of them reads the highest id
			f.must(f.FloorStep(t.Context()))
		}
		if !pgtest.One[bool](t, f.db, "select pg_current_wal_flush_lsn() >= $1::text::pg_lsn", drawn) {
			t.Error("the highest id was read before its record was on the disk")
		}
		f.drain()
		f.riseFully()
		f.at(11, "its record is on the disk")
	})
}

// TestP6FloorIgnoresSnapshots: a transaction has drawn an id, and a snapshot's xmax suggests that all ids are decided:
// xmax is one past the highest completed transaction, not past the highest transaction.
func TestP6FloorIgnoresSnapshots(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	// Within the server: between two round trips, other tests may complete later transactions.
	db.Exec(t, `create function unseen() returns boolean language plpgsql as $$ begin
		`+insertOne+`;
		return pg_current_xact_id() >= pg_snapshot_xmax(pg_current_snapshot());
	end $$`)
	for range 200 {
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var unseen bool
		err = tx.QueryRow(t.Context(), `select unseen()`).Scan(&unseen)
		if err := errors.Join(err, tx.Rollback(t.Context())); err != nil {
			t.Fatal(err)
		}
		if unseen {
			return
		}
	}
	t.Error("no snapshot in 200 had its xmax at or below an open transaction that had drawn an id")
}

// TestP6FloorFallsWhenIDsMayGoBack: claims and probes compare the numbering themselves and see a change at once; then
// the floors in memory fall.
func TestP6FloorFallsWhenIDsMayGoBack(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"set back":      `select setval('outbox_event_id_seq', 1)`,
		"restarted":     `alter sequence outbox_event_id_seq restart`,
		"another cache": `alter table outbox_event alter column id set cache 10; select setval('outbox_event_id_seq', 1, false)`,
		"another cycle": `alter table outbox_event alter column id set cycle; select setval('outbox_event_id_seq', 1, false)`,
		"recreated":     `alter table outbox_event alter column id drop identity; alter table outbox_event alter column id add generated always as identity (cache 1)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := driven(t, outboxDB(t))
			fill(t, f.db, 100, 10)
			f.drain()
			f.riseFully()
			f.at(100, "everything is published")
			f.exec(f.db.Connect(t), sql)
			fill(t, f.db, 20, 10)
			if found, err := f.Probe(t.Context()); err != nil || len(found) == 0 {
				t.Errorf("a probe found the low ids in lanes %v, error %v", found, err)
			}
			f.drain()
			if n := f.to.count(); n != 120 {
				t.Errorf("%d events published, want 120", n)
			}
			f.must(f.FloorStep(t.Context()))
			f.at(0, "ids went back")
		})
	}
}

// TestP6FloorNeedsTableSequence: outbox_event_id_seq belongs to another table, and is far ahead of the sequence that
// ids come from.
func TestP6FloorNeedsTableSequence(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, `alter sequence outbox_event_id_seq rename to ids`)
	f.db.Exec(t, `create sequence outbox_event_id_seq start 5000000; select nextval('outbox_event_id_seq')`)
	fill(t, f.db, 100, 10)
	f.drain()
	f.riseFully()
	f.at(0, "that sequence does not number these ids")
	fill(t, f.db, 20, 10)
	f.drain()
	if n := f.to.count(); n != 120 {
		t.Errorf("%d events published, want 120", n)
	}
	r := newRelay(t, f.db, f.to, config())
	const want = "ids from another sequence than outbox_event_id_seq, from "
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "ids:") {
		t.Errorf("Run: %v", err)
	}
	if _, err := newRelay(t, f.db, f.to, config()).Once(t.Context()); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("Once: %v", err)
	}
	if d, err := operator.Diagnose(t.Context(), f.db.Pool, f.db.Schema, false); err != nil ||
		!strings.HasSuffix(d.Sequence.Other, "ids") {
		t.Errorf("the diagnosis names the sequence %q: %v", d.Sequence.Other, err)
	}
}

func TestP6FloorFallsWithTheConnection(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	fill(t, f.db, 100, 10)
	f.drain()
	f.riseFully()
	f.at(100, "everything is published")
	terminate(t, f.db, f.ProberPID())
	_ = f.FloorStep(t.Context()) // fails, for its connection has ended
	f.must(f.FloorStep(t.Context()))
	f.at(0, "the new connection may lead to another server")
	f.riseFully()
	f.at(100, "it was the same server")
}

// TestP6RescanFindsSuppliedID: somebody inserts an explicit id.
func TestP6RescanFindsSuppliedID(t *testing.T) {
	t.Parallel()
	var found []int16
	f := driven(t, outboxDB(t), func(c *relay.Config) {
		c.RescanEvery = 1
		c.Observer.BelowFloor = func(lane int16) { found = append(found, lane) }
	})
	fill(t, f.db, 100, 10)
	f.drain()
	f.riseFully()
	f.at(100, "everything is published")
	if len(found) > 0 {
		t.Fatalf("lanes %v have rows below their floors", found)
	}
	f.db.Exec(t,
		`insert into outbox_event (id, topic, key, type, payload) overriding system value values (7, 'payments', 'k1',
				'T', '10')`)
	f.drain()
	if n := f.to.count(); n != 100 {
		t.Fatalf("%d events: the floor hides no row, and the test proves nothing", n)
	}
	f.must(f.FloorStep(t.Context()))
	if lane := pgtest.One[int16](t, f.db, `select lane from outbox_event`); len(found) != 1 || found[0] != lane {
		t.Errorf("the probe from zero found lanes %v", found)
	}
	f.drain()
	checkOrder(t, f.to.events(), 101)
}

// TestP6FloorsOfARunningRelay: the same without a Driver.
func TestP6FloorsOfARunningRelay(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	f := &floors{t: t, db: db}
	f.begin(db, `set transaction isolation level repeatable read`, `select count(*) from outbox_event`)
	r := newRelay(t, db, to, config(func(c *relay.Config) { c.FloorEvery = 1 }))
	stop := startRelay(t, r)
	for round := range 5 {
		fill(t, db, 1000, 1000/(round+1))
		awaitDrained(t, db)
	}
	pgtest.Await(t, "floors at the last id", func() (bool, error) { return relay.LowestFloor(r) == 5000, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := to.count(); n != 5000 {
		t.Errorf("%d events published", n)
	}
}

// TestP6RescanFindsReopenedEntry: a pooler hides that the server has crashed and undone a settle.
func TestP6RescanFindsReopenedEntry(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t), func(c *relay.Config) {
		c.Observer.BelowFloor = func(lane int16) { t.Errorf("a row below the floor of lane %d was reported", lane) }
	})
	f.db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '0')`)
	f.drain()
	f.riseFully()
	f.at(1, "the event is published")
	e := f.to.events()[0]
	f.db.Exec(t,
		`insert into outbox_event (id, message_id, topic, key, type, payload) overriding system value
			values (1, $1, 'payments', 'k', 'T', '0')`, e.ID)
	f.db.Exec(t, `insert into outbox_claim values ($1, $2, '{1}', array[$2::bigint])`, e.Position.Lane, e.Position.Seq)
	_, err := f.Probe(t.Context()) // finds no lane, for all are idle
	f.must(err)
	f.must(f.Rescan(t.Context()))
	f.drain()
	again := f.to.events()[1:]
	if len(again) != 1 || again[0].ID != e.ID || again[0].Position.Seq != e.Position.Seq {
		t.Errorf("published again: %+v", again)
	}
	if n := pgtest.One[int](t, f.db, `select count(*) from outbox_claim`); n != 0 {
		t.Error("the entry is still open")
	}
}
