package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// walDB is an outbox with a publication; its slot is dropped at the end of the test.
func walDB(t *testing.T) (db *pgtest.DB, slot string) {
	t.Helper()
	db = outboxDB(t)
	slot, err := operator.SetUpWAL(t.Context(), db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dropSlot(t, db, slot) })
	return db, slot
}

// dropSlot drops a slot, even while it is read, and its publication.
func dropSlot(t *testing.T, db *pgtest.DB, slot string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.AdminURL)
	if err != nil {
		t.Errorf("connect: %v", err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for ctx.Err() == nil {
		_,
			_ = conn.Exec(ctx,
			`select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1
				and active_pid is not null`, slot)
		_,
			err := conn.Exec(ctx,
			`select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1`, slot)
		if err == nil {
			break
		}
	}
	_, _ = conn.Exec(ctx, "drop publication if exists "+slot)
}

// awaitUnread waits until the server has noticed that nobody reads a slot: DropWAL waits for that only for two seconds.
func awaitUnread(t *testing.T, db *pgtest.DB, slot string) {
	t.Helper()
	pgtest.AwaitSQL(t, db, `select not active from pg_replication_slots where slot_name = $1`, slot)
}

func fromWAL(c *relay.Config) { c.Feed, c.WALHeartbeat = relay.FeedWAL, time.Second }

// awaitStreaming waits until every lane's feed is the WAL.
func awaitStreaming(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.AwaitSQL(t, db, `select count(*) = 32 from outbox_streamed`)
}

// fromLog checks that the numbers of events from the WAL rise, and returns the number of these events.
func fromLog(t *testing.T, log []event.Event) (n int) {
	t.Helper()
	last, seen := int64(0), map[string]bool{}
	for _, e := range log {
		if e.Position.Lane != -1 {
			continue
		}
		n++
		if id := e.ID.String(); seen[id] {
			continue
		} else {
			seen[id] = true
		}
		if e.Position.Seq <= last {
			t.Fatalf("event %s of key %s has number %d after %d", e.Payload, e.Key, e.Position.Seq, last)
		}
		last = e.Position.Seq
	}
	return n
}

// TestWALPublishes: events that are in the table when a relay begins to read the WAL are published from the table; all
// later ones come from the WAL, each once. Published events are deleted, and a stop gives the lanes back to the table.
func TestWALPublishes(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	fill(t, db, 500, 50)
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	if n := to.count(); n != 500 {
		t.Fatalf("%d events were published before every lane was handed over, want 500", n)
	}
	db.Exec(t, `insert into outbox_event (topic, key, type, payload, headers, tenant)
		select 'payments', 'k' || (g % 50), 'T', convert_to((10 + g / 50)::text, 'UTF8'), '{"a": "b"}', 'x'
		from generate_series(0, 499) g`)
	for i := range 100 {
		db.Exec(t,
			`insert into outbox_event (topic, key, type, payload) values ('payments', 'k' || $1::int, 'T',
					convert_to($2, 'UTF8'))`, i%50, fmt.Sprint(20+i/50))
	}
	awaitDrained(t, db)
	log := to.events()
	if dup := checkOrder(t, log, 1100); dup != 0 {
		t.Errorf("%d events were published twice", dup)
	}
	if n := fromLog(t, log); n != 600 {
		t.Errorf("%d events came from the WAL, want 600", n)
	}
	if e := log[600]; e.Headers["a"] != "b" || e.Tenant != "x" || e.Type != "T" ||
		e.ContentType != "application/json" || e.Time.IsZero() {
		t.Errorf("event %+v", e)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_streamed`); n != 0 {
		t.Errorf("%d lanes are left to the WAL after a clean stop", n)
	}
	// The server may not have read the relay's last message yet.
	pgtest.AwaitSQL(t, db,
		`select w.confirmed = s.confirmed_flush_lsn and not s.active from outbox_wal w, pg_replication_slots s
			where s.slot_name = $1`, slot)
	if e := pgtest.One[string](t, db, `select outbox_id || '.' || incarnation from outbox_meta`); e != log[len(
		log)-1].Position.Epoch || !strings.HasSuffix(e, ".1") {
		t.Errorf("the numbering is %s, and was %s", e, log[len(log)-1].Position.Epoch)
	}
}

// TestWALLargeValues: values that the table stores out of line, compressed or not, are published whole.
func TestWALLargeValues(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	noise := make([]byte, 300_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	long := strings.Repeat("v", 8000)
	want := [][]byte{noise, bytes.Repeat([]byte("even "), 200_000), {}, nil}
	for _, payload := range want {
		db.Exec(t,
			`insert into outbox_event (topic, key, type, payload, headers) values ('t', 'k', 'T', $1,
					jsonb_build_object('h', $2::text))`, payload, long)
	}
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if n := fromLog(t, log); n != len(want) {
		t.Fatalf("%d events came from the WAL", n)
	}
	for i, e := range log {
		if !bytes.Equal(e.Payload, want[i]) || (e.Payload == nil) != (want[i] == nil) || e.Headers["h"] != long {
			t.Errorf("event %d has %d bytes, want %d", i, len(e.Payload), len(want[i]))
		}
	}
}
