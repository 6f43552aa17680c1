package relay_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestWAL5TableIsWrittenBeforeSlotMoves: the slot goes on to a place when the table has it for certain. Otherwise a
// crash in between leaves a slot that is ahead of what the table says, which counts as one that somebody else has
// moved.
func TestWAL5TableIsWrittenBeforeSlotMoves(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	// A lease that outlasts the lock.
	running(t, newRelay(t, db, &memory{}, config(fromWAL, func(c *relay.Config) { c.Lease = time.Minute })))
	streaming(t, db)
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
		`select exists (select from pg_stat_activity where wait_event_type = 'Lock'
				and query like '%relay: wal confirm%'
		and datname = current_database())`)
	// A status that the relay sends from now on has what it would have told the slot.
	pgtest.AwaitSQL(t, db,
		`select exists (select from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid
		where s.slot_name = $1 and r.reply_time > $2)`, slot, pgtest.One[time.Time](t, db, `select clock_timestamp()`))
	if ahead := pgtest.One[int64](t, db,
		`select (s.confirmed_flush_lsn - w.confirmed)::bigint from pg_replication_slots s, outbox_wal w
			where s.slot_name = w.slot`); ahead > 0 {
		t.Errorf("the slot stands %d bytes ahead of what the table says", ahead)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	drained(t, db)
}

// TestWAL5SlotWasReplaced: a relay whose slot is another one by now confirms nothing, and ends its session.
func TestWAL5SlotWasReplaced(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	heard := make(chan string, 1000)
	running(t, newRelay(t, db, &memory{}, config(fromWAL,
		func(c *relay.Config) { c.Logger = slog.New(interruptions{heard: heard}) })))
	streaming(t, db)
	fill(t, db, 10, 10)
	drained(t, db)
	db.Exec(t, `update outbox_wal set slot = 'another'`)
	since := pgtest.One[string](t, db, `select pg_current_wal_insert_lsn()::text`)
	fill(t, db, 10, 10)
	pgtest.Await(t, "the end of the session", func() (bool, error) {
		if pgtest.One[bool](t, db,
			`select confirmed_flush_lsn > $2::text::pg_lsn from pg_replication_slots where slot_name = $1`, slot,
			since) {
			t.Fatal("a place was confirmed to a slot that is another one by now")
		}
		select {
		case text := <-heard:
			return strings.Contains(text, "given up by somebody"), nil
		default:
			return false, nil
		}
	})
}

// TestWAL6NumberingIsReadInStream: a failover between the look at the slot and the begin of the stream:
// nothing is published in the numbering of before.
func TestWAL6NumberingIsReadInStream(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(fromWAL)))
	streaming(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Connect(t).Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `select from outbox_wal for update`)
	}
	if err != nil {
		t.Fatal(err)
	}
	running(t, newRelay(t, db, to, config(fromWAL)))
	pgtest.AwaitSQL(t, db,
		`select exists (select from pg_stat_activity where wait_event_type = 'Lock' and query like '%relay: wal own%'
		and datname = current_database())`)
	before := pgtest.One[string](t, db, `select outbox_id || '.' || incarnation from outbox_meta`)
	db.Exec(t, `update outbox_meta set timeline = '0000000F'`)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	streaming(t, db)
	fill(t, db, 10, 10)
	drained(t, db)
	for _, e := range to.events() {
		if e.Position.Epoch == before {
			t.Fatalf("an event was published in %s, the numbering of another timeline", before)
		}
	}
	inOrder(t, to.events(), 10)
}
