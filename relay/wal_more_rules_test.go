package relay_test

import (
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestWAL7LastConfirmationIsSent: an orderly end leaves the slot behind everything that was published, long before a
// heartbeat would, and the next relay is sent nothing again.
func TestWAL7LastConfirmationIsSent(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	rarely := func(c *relay.Config) { c.WALHeartbeat = time.Hour }
	stop := running(t, newRelay(t, db, to, config(fromWAL, rarely)))
	streaming(t, db)
	tx, err := db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Read before the COMMIT: behind it may stand what other tests write on this server.
	var place string
	if err := tx.QueryRow(t.Context(), `with filled as (insert into outbox_event (topic, key, type, payload)
		select 'payments', 'k' || (g % 10), 'T', convert_to((g / 10)::text, 'UTF8') from generate_series(0, 499) g
		returning 1)
		select max(pg_current_wal_insert_lsn())::text from filled`).Scan(&place); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "the events", func() (bool, error) { return to.count() == 500, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if !pgtest.One[bool](t, db,
		`select confirmed_flush_lsn >= $2::pg_lsn from pg_replication_slots where slot_name = $1`, slot, place) {
		t.Error("the slot stands before what was published")
	}
	stop = running(t, newRelay(t, db, to, config(fromWAL, rarely)))
	streaming(t, db)
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '50')`)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if again := inOrder(t, to.events(), 501); again > 0 {
		t.Errorf("%d events were published again", again)
	}
}

// TestWAL9DeletesAreNotStreamed: what a relay deletes is not sent to those who read the publication.
func TestWAL9DeletesAreNotStreamed(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	second := slot + "_second"
	t.Cleanup(func() { dropSlot(t, db, second) })
	stop := running(t, newRelay(t, db, &memory{}, config(fromWAL)))
	streaming(t, db)
	db.Exec(t, `select pg_create_logical_replication_slot($1, 'pgoutput')`, second)
	fill(t, db, 100, 10)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	const kinds = `select coalesce(string_agg(distinct chr(get_byte(data, 0)), '' order by chr(get_byte(data, 0))), '')
		from pg_logical_slot_peek_binary_changes($1, null, null, 'proto_version', '1', 'publication_names', $2)`
	if got := pgtest.One[string](t, db, kinds, second, slot); got != "BCIR" {
		t.Errorf("messages of the kinds %s came, want those of inserts: BCIR", got)
	}
}

// TestWAL11NobodyNotifies: neither tables nor statements have the producer's transaction notify anybody: a commit that
// does waits for all others that do.
func TestWAL11NobodyNotifies(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	if n := pgtest.One[int](t, db,
		`select count(*) from pg_trigger where tgrelid in ('outbox_event'::regclass, 'outbox_scheduled'::regclass)`); n > 0 {
		t.Errorf("%d triggers", n)
	}
	for _, sql := range relay.Queries(t) {
		if strings.Contains(strings.ToLower(sql), "notify") {
			t.Errorf("a statement notifies: %s", sql)
		}
	}
}

// TestWALArchives: published events go into the archive with the numbers that they were published under, and can be
// replayed from there.
func TestWALArchives(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	start := time.Now().Add(-time.Hour)
	stop := running(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.ArchiveDays = 2 })))
	streaming(t, db)
	fill(t, db, 500, 10)
	drained(t, db)
	log := to.events()
	inOrder(t, log, 500)
	for _, e := range log {
		if !pgtest.One[bool](t, db,
			`select count(*) = 1 from outbox_archive where message_id = $1 and epoch = $2 and lane = -1 and seq = $3`,
			e.ID, e.Position.Epoch, e.Position.Seq) {
			t.Fatalf("event %s of key %s is not in the archive as it was published: %+v", e.Payload, e.Key, e.Position)
		}
	}
	if done, err := newOperator(t, db).Replay(t.Context(), operator.Replay{From: start, Topic: "payments"},
		"a test"); err != nil || done.Events != 500 {
		t.Fatalf("%+v: %v", done, err)
	}
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log = to.events()
	if again := inOrder(t, log, 500); again != 500 {
		t.Errorf("%d events were published again", again)
	}
	for _, e := range log[500:] {
		if e.Headers[event.HeaderReplay] != "true" || e.Position.Lane != -1 {
			t.Fatalf("event %s was replayed as %+v", e.Payload, e)
		}
	}
}

// TestWALDeletesWhatIsAcked and nothing before: until then the table is where the event is, whatever becomes of the
// slot.
func TestWALDeletesWhatIsAcked(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	stop := running(t, newRelay(t, db, to, config(fromWAL)))
	streaming(t, db)
	fill(t, db, 10, 10)
	<-to.entered
	told(t, db, slot)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 10 {
		t.Errorf("a row is gone whose event is not acked: %d of 10 are left", n)
	}
	close(to.gate)
	go func() {
		for range to.entered { //nolint:revive // whatever comes
		}
	}()
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	close(to.entered)
	inOrder(t, to.events(), 10)
}

// TestWALStandbyWaits: a relay that stands by looks again and again, and leaves the slot to the one that reads.
func TestWALStandbyWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox) // of its own, whose sessions are counted
	slot, err := operator.SetUpWAL(t.Context(), db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dropSlot(t, db, slot) })
	const reader = `select coalesce(active_pid, 0) from pg_replication_slots where slot_name = $1`
	const sessions = `select sessions from pg_stat_database where datname = current_database()`
	to := &memory{}
	stopFirst := running(t, newRelay(t, db, to, config(fromWAL)))
	streaming(t, db)
	pid := pgtest.One[int](t, db, reader, slot)
	stopSecond := running(t, newRelay(t, db, to, config(fromWAL)))
	pgtest.AwaitSQL(t, db, `select count(*) = 2 from relay_member`)
	before := pgtest.One[int](t, db, sessions)
	// each look is one, and its own ones are at most five
	pgtest.AwaitSQL(t, db, `select sessions >= $1 from pg_stat_database where datname = current_database()`, before+7)
	if now := pgtest.One[int](t, db, reader, slot); now != pid {
		t.Errorf("the standby has ended the connection of a relay that lives: process %d reads, and %d did", now, pid)
	}
	if err := stopSecond(); err != nil {
		t.Fatal(err)
	}
	if err := stopFirst(); err != nil {
		t.Fatal(err)
	}
}

// TestWALLateHandOver: a hand-over that waited for long, for a broker perhaps, comes when another relay has
// begun to read. That has passed what the hand-over's snapshot does not show: nobody would publish it.
func TestWALLateHandOver(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(fromWAL)))
	streaming(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `create table handed (by_reader boolean)`)
	db.Exec(t, `create function note() returns trigger language plpgsql as $$ begin
		insert into handed select w.owner = l.owner from outbox_lane l, outbox_wal w where l.lane = new.lane;
		return new;
	end $$`)
	db.Exec(t, `create trigger note after insert on outbox_streamed for each row execute function note()`)
	tx, err := db.Connect(t).Begin(t.Context())
	if err == nil {
		_,
			err = tx.Exec(t.Context(),
			`insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '0')`)
	}
	if err != nil {
		t.Fatal(err)
	}
	// no lane is handed over to it before that transaction has ended
	stop = running(t, newRelay(t, db, to, config(fromWAL)))
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_wal w join outbox_lane l on l.owner = w.owner)`)
	db.Exec(t, `update outbox_wal set owner = gen_random_uuid()`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	streaming(t, db)
	drained(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from handed where by_reader is not true`); n > 0 {
		t.Errorf("%d lanes were handed over by a relay that does not read any more", n)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	inOrder(t, to.events(), 1)
}
