package relay_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestWAL5TableIsWrittenBeforeSlotMoves: the slot moves to a position only when the table has certainly recorded it.
// Otherwise a crash in between leaves a slot ahead of the table, which counts as one that was moved by somebody else.
func TestWAL5TableIsWrittenBeforeSlotMoves(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	startRelay(t, newRelay(t, db, &memory{}, config(fromWAL)))
	awaitStreaming(t, db)
	conn := db.Connect(t)
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `select from outbox_wal for update`)
	}
	if err != nil {
		t.Fatal(err)
	}
	fill(t, db, 10, 10)
	pgtest.AwaitSQL(t, db,
		`select exists (select from pg_stat_activity where datname = current_database() and $1 = any (pg_blocking_pids(pid))
			and query like '%relay: wal confirm%')`, int32(conn.PgConn().PID()))
	// A status that the relay sends from now on confirms the new position, if the relay confirms it at all.
	pgtest.AwaitSQL(t, db,
		`select exists (select from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid
		where s.slot_name = $1 and r.reply_time > $2)`, slot, pgtest.One[time.Time](t, db, `select clock_timestamp()`))
	if ahead := pgtest.One[int64](t, db,
		`select (s.confirmed_flush_lsn - w.confirmed)::bigint from pg_replication_slots s, outbox_wal w
			where s.slot_name = w.slot`); ahead > 0 {
		t.Errorf("the slot is %d bytes ahead of the position in the table", ahead)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitDrained(t, db)
}

// TestWAL5SlotWasReplaced: a relay whose slot was dropped and recreated confirms nothing, and ends its session.
func TestWAL5SlotWasReplaced(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	heard := make(chan string, 1000)
	startRelay(t, newRelay(t, db, &memory{}, config(fromWAL,
		func(c *relay.Config) { c.Logger = slog.New(interruptions{heard: heard}) })))
	awaitStreaming(t, db)
	fill(t, db, 10, 10)
	awaitDrained(t, db)
	db.Exec(t, `update outbox_wal set slot = 'another'`)
	since := pgtest.One[string](t, db, `select pg_current_wal_insert_lsn()::text`)
	fill(t, db, 10, 10)
	pgtest.Await(t, "the end of the session", func() (bool, error) {
		if pgtest.One[bool](t, db,
			`select confirmed_flush_lsn > $2::text::pg_lsn from pg_replication_slots where slot_name = $1`, slot,
			since) {
			t.Fatal("a position was confirmed to a slot that was replaced")
		}
		select {
		case text := <-heard:
			return strings.Contains(text, "given up by somebody"), nil
		default:
			return false, nil
		}
	})
}

// TestWAL6NumberingIsReadInStream: after a failover between the check of the slot and the start of the stream, no event
// is published in the old numbering.
func TestWAL6NumberingIsReadInStream(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	conn := db.Connect(t)
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `select from outbox_wal for update`)
	}
	if err != nil {
		t.Fatal(err)
	}
	startRelay(t, newRelay(t, db, to, config(fromWAL)))
	pgtest.AwaitSQL(t, db,
		`select exists (select from pg_stat_activity where datname = current_database() and $1 = any (pg_blocking_pids(pid))
			and query like '%relay: wal own%')`, int32(conn.PgConn().PID()))
	before := pgtest.One[string](t, db, `select outbox_id || '.' || incarnation from outbox_meta`)
	db.Exec(t, `update outbox_meta set timeline = '0000000F'`)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitStreaming(t, db)
	fill(t, db, 10, 10)
	awaitDrained(t, db)
	for _, e := range to.events() {
		if e.Position.Epoch == before {
			t.Fatalf("an event was published in %s, the numbering of another timeline", before)
		}
	}
	checkOrder(t, to.events(), 10)
}

// TestWAL6NothingIsWrittenToAnotherServer: a standby has taken over, and the connection that reads the WAL has not
// noticed. What the old server's WAL has shown is neither deleted nor confirmed on the new one: its rows may be others
// under the same ids, and the reader would begin behind events that it has not read.
func TestWAL6NothingIsWrittenToAnotherServer(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	fillFrom(t, db, 0, 10)
	awaitDrained(t, db)
	for _, sql := range []string{
		`create table wrong (what text)`,
		`create function notes() returns trigger language plpgsql as $$ begin
			if current_setting('application_name') = 'effectonce relay wal deleter' and exists (
				select from outbox_wal where timeline = '0') then
				insert into wrong values (tg_op || ' ' || tg_table_name);
			end if;
			return coalesce(new, old); end $$`,
		`create trigger notes before delete on outbox_event for each row execute function notes()`,
		`create trigger notes before update of confirmed on outbox_wal for each row
			when (new.confirmed > old.confirmed and new.timeline = '0') execute function notes()`,
		`update outbox_wal set timeline = '0'`,
	} {
		db.Exec(t, sql)
	}
	fillFrom(t, db, 10, 10)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 400)
	if wrong := pgtest.One[string](t, db,
		`select coalesce(string_agg(distinct what, ', '), '') from wrong`); wrong != "" {
		t.Errorf("written to another server: %s", wrong)
	}
}
