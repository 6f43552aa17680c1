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

// TestWAL7LastConfirmationIsSent: a clean stop moves the slot behind all published events, without waiting for a
// heartbeat, and the next relay is sent none of them.
func TestWAL7LastConfirmationIsSent(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	rarely := func(c *relay.Config) { c.WALHeartbeat = time.Hour }
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, rarely)))
	awaitStreaming(t, db)
	tx, err := db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Read before the COMMIT: other tests on this server may write WAL behind it.
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
	// No relay runs any more, but the server may not have read its last message yet.
	pgtest.AwaitSQL(t, db,
		`select confirmed_flush_lsn >= $2::pg_lsn from pg_replication_slots where slot_name = $1`, slot, place)
	stop = startRelay(t, newRelay(t, db, to, config(fromWAL, rarely)))
	awaitStreaming(t, db)
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '50')`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if again := checkOrder(t, to.events(), 501); again > 0 {
		t.Errorf("%d events were published again", again)
	}
}

// TestWAL7StopsBetweenTransactions: a clean stop while a transaction is being published publishes all of it, and moves
// the slot behind it.
func TestWAL7StopsBetweenTransactions(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) {
		c.WALHeartbeat, c.ClaimEvents = time.Hour, 32
	})))
	awaitStreaming(t, db)
	var place string
	if err := db.Pool.QueryRow(t.Context(), `with filled as (insert into outbox_event (topic, key, type, payload)
		select 'payments', 'k' || (g % 10), 'T', convert_to((g / 10)::text, 'UTF8') from generate_series(0, 4999) g
		returning 1)
		select max(pg_current_wal_insert_lsn())::text from filled`).Scan(&place); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "an event", func() (bool, error) { return to.count() > 0, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db,
		`select confirmed_flush_lsn >= $2::pg_lsn from pg_replication_slots where slot_name = $1`, slot, place)
	if again := checkOrder(t, to.events(), 5000); again > 0 {
		t.Errorf("%d events were published again", again)
	}
}

// TestWAL9DeletesAreNotStreamed: a relay's deletes are not streamed to subscribers of the publication.
func TestWAL9DeletesAreNotStreamed(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	second := slot + "_second"
	t.Cleanup(func() { dropSlot(t, db, second) })
	stop := startRelay(t, newRelay(t, db, &memory{}, config(fromWAL)))
	awaitStreaming(t, db)
	db.Exec(t, `select pg_create_logical_replication_slot($1, 'pgoutput')`, second)
	fill(t, db, 100, 10)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	const kinds = `select coalesce(string_agg(distinct chr(get_byte(data, 0)), '' order by chr(get_byte(data, 0))), '')
		from pg_logical_slot_peek_binary_changes($1, null, null, 'proto_version', '1', 'publication_names', $2)`
	if got := pgtest.One[string](t, db, kinds, second, slot); got != "BCIR" {
		t.Errorf("the stream had messages %s, want only those of inserts: BCIR", got)
	}
}

// TestWAL11NobodyNotifies: neither tables nor statements call NOTIFY in the producer's transaction: a COMMIT with a
// notification waits for all others that have one.
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

// TestWALArchives: published events are archived with their numbers, and can be replayed.
func TestWALArchives(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	start := time.Now().Add(-time.Hour)
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.ArchiveDays = 2 })))
	awaitStreaming(t, db)
	fill(t, db, 500, 10)
	awaitDrained(t, db)
	log := to.events()
	checkOrder(t, log, 500)
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
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log = to.events()
	if again := checkOrder(t, log, 500); again != 500 {
		t.Errorf("%d events were published again", again)
	}
	for _, e := range log[500:] {
		if e.Headers[event.HeaderReplay] != "true" || e.Position.Lane != -1 {
			t.Fatalf("event %s was replayed as %+v", e.Payload, e)
		}
	}
}

// TestWALDeletesWhatIsAcked: and nothing else: until the ack the table keeps the event, whatever happens to the slot.
func TestWALDeletesWhatIsAcked(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	fill(t, db, 10, 10)
	<-to.entered
	awaitStatus(t, db, slot)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 10 {
		t.Errorf("the row of an unacked event was deleted: %d of 10 are left", n)
	}
	close(to.gate)
	go func() {
		for range to.entered { //nolint:revive // ignore all calls
		}
	}()
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	close(to.entered)
	checkOrder(t, to.events(), 10)
}

// TestWALStandbyWaits: a standby relay keeps trying, and leaves the slot to the relay that reads it.
func TestWALStandbyWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox) // its sessions are counted
	slot, err := operator.SetUpWAL(t.Context(), db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dropSlot(t, db, slot) })
	const reader = `select coalesce(active_pid, 0) from pg_replication_slots where slot_name = $1`
	const sessions = `select sessions from pg_stat_database where datname = current_database()`
	to := &memory{}
	stopFirst := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	pid := pgtest.One[int](t, db, reader, slot)
	stopSecond := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	pgtest.AwaitSQL(t, db, `select count(*) = 2 from relay_member`)
	before := pgtest.One[int](t, db, sessions)
	// Each attempt opens one session; the relay's other sessions are at most five.
	pgtest.AwaitSQL(t, db, `select sessions >= $1 from pg_stat_database where datname = current_database()`, before+7)
	if now := pgtest.One[int](t, db, reader, slot); now != pid {
		t.Errorf("the standby has ended the connection of a live relay: process %d reads, before it was %d", now, pid)
	}
	if err := stopSecond(); err != nil {
		t.Fatal(err)
	}
	if err := stopFirst(); err != nil {
		t.Fatal(err)
	}
}

// TestWALLateHandOver: a hand-over that was delayed, for example by a broker, happens after another relay has begun to
// read. That relay has passed events that the hand-over's snapshot does not show: no relay would publish them.
func TestWALLateHandOver(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
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
	// No lane is handed over to the new relay before that transaction has ended.
	stop = startRelay(t, newRelay(t, db, to, config(fromWAL)))
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_wal w join outbox_lane l on l.owner = w.owner)`)
	db.Exec(t, `update outbox_wal set owner = gen_random_uuid()`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitStreaming(t, db)
	awaitDrained(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from handed where by_reader is not true`); n > 0 {
		t.Errorf("%d lanes were handed over by a relay that no longer reads", n)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 1)
}
