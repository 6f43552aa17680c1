package relay_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// Events from the WAL have their commit's place for a number. What puts these back must begin a new incarnation, or
// consumers that go by numbers would drop what is new.

// applied checks that a consumer that goes by numbers, and accepts each numbering, misses none of so many events.
func applied(t *testing.T, log []event.Event, want int) {
	t.Helper()
	type mark struct {
		epoch string
		lane  int16
		key   string
	}
	highest, events := map[mark]int64{}, map[string]bool{}
	for _, e := range log {
		if m := (mark{e.Position.Epoch, e.Position.Lane, e.Key}); e.Position.Seq > highest[m] {
			highest[m] = e.Position.Seq
			events[e.ID.String()] = true
		}
	}
	if len(events) != want {
		t.Errorf("a consumer that goes by numbers applies %d of %d events", len(events), want)
	}
}

// round publishes a part of each key's events from the WAL, and ends in order.
func round(t *testing.T, db *pgtest.DB, to *memory, from, each int) {
	t.Helper()
	stop := running(t, newRelay(t, db, to, config(fromWAL)))
	streaming(t, db)
	for i := range each {
		db.Exec(t,
			`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T',
				convert_to($1, 'UTF8') from generate_series(0, 9) g`, fmt.Sprint(from+i))
	}
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestWALNumbersAfterDrop: a slot that is dropped for good, and made again later all the same, goes on with higher
// numbers.
func TestWALNumbersAfterDrop(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	round(t, db, to, 0, 1)
	// so the next numbers are far from the base
	db.Exec(t, `create table noise as select repeat('x', 100) from generate_series(1, 20000)`)
	round(t, db, to, 1, 4)
	if _, err := operator.DropWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	if st, err := relay.ReadWALStatus(t.Context(), db.Pool, ""); err != nil || st != nil {
		t.Errorf("status %+v: %v", st, err)
	}
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	round(t, db, to, 5, 5)
	log := to.events()
	inOrder(t, log, 100)
	applied(t, log, 100)
	if n := byNumber(t, log); n != 1 || fromLog(t, log) != 100 {
		t.Errorf("%d numberings, %d events from the WAL", n, fromLog(t, log))
	}
}

// TestWALNumbersEnd: after three quarters of the numbers that a base lasts for, another slot is made with another base,
// and a new incarnation begins, although every lane was given back to the table in order.
func TestWALNumbersEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	t.Parallel()
	server := pgtest.NewServer(t)
	db := server.Database(t, migrations.Outbox)
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	to := &memory{}
	round(t, db, to, 0, 5)
	server.StopFast()
	server.SkipWAL(t, "000000010000C00100000001")
	server.Start(t)
	db.Pool.Reset()
	round(t, db, to, 5, 5)
	log := to.events()
	inOrder(t, log, 100)
	applied(t, log, 100)
	if n := byNumber(t, log); n != 2 {
		t.Errorf("%d numberings, want 2", n)
	}
	if p := log[99].Position; p.Lane != -1 || p.Seq <= 0 || p.Seq >= log[0].Position.Seq+1<<62 {
		t.Errorf("the last event has position %+v", p)
	}
}

// TestWALNewNumbering: what is committed after somebody has begun a new numbering is not published under the old one,
// and a partition count is not accepted beside events that may have been written.
func TestWALNewNumbering(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	var away atomic.Bool
	away.Store(true)
	tried := make(chan struct{}, 100)
	to := &memory{}
	to.verdict = func(_ int, e event.Event) error {
		if string(e.Payload) == "1" && away.Load() {
			select {
			case tried <- struct{}{}:
			default:
			}
			return errAway
		}
		return nil
	}
	stop := running(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.HoldAfter = -1 })))
	streaming(t, db)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 6)`)
	fill(t, db, 2, 1)
	<-tried
	o := newOperator(t, db)
	if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "resized"); !errors.Is(err,
		operator.ErrUncertain) {
		t.Errorf("beside an event that may have been written: %v", err)
	}
	if err := o.AcceptPartitions(t.Context(), "payments", 12, true, "resized"); err != nil {
		t.Fatal(err)
	}
	epoch := pgtest.One[string](t, db, `select outbox_id || '.' || incarnation from outbox_meta`)
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '2')`)
	away.Store(false)
	drained(t, db)
	fenced, err := o.Fence(t.Context(), "restored")
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '3')`)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	inOrder(t, log, 4)
	for _, e := range log {
		want := map[string]string{"2": epoch, "3": fenced.Epoch}[string(e.Payload)]
		if want != "" && e.Position.Epoch != want && e.Position.Epoch != fenced.Epoch {
			t.Errorf("event %s, committed in numbering %s, was published in %s", e.Payload, want, e.Position.Epoch)
		}
	}
	if last := log[len(log)-1]; last.Position.Epoch != fenced.Epoch {
		t.Errorf("the last event is of numbering %s, want %s", last.Position.Epoch, fenced.Epoch)
	}
}

// TestP10LogIsAheadOfWAL: a log that holds numbers of the WAL beyond its end tells of a restore.
func TestP10LogIsAheadOfWAL(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	round(t, db, to, 0, 2)
	log := to.events()
	if err := operator.CheckNumbers(t.Context(), db.Pool, "", log); err != nil {
		t.Errorf("numbers that were given out: %v", err)
	}
	log[7].Position.Seq += 1 << 40
	var behind *operator.BehindError
	if err := operator.CheckNumbers(t.Context(), db.Pool, "", log); !errors.As(err, &behind) || behind.Lane != -1 {
		t.Errorf("a number beyond the WAL's end: %v", err)
	}
}

// TestWAL8TransactionExceedsNumbers: what a transaction has beyond the numbers of one is published from the table, in
// order.
func TestWAL8TransactionExceedsNumbers(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	r := newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.ClaimEvents = 500 }))
	relay.LowerNumbers(r, 3000)
	stop := running(t, r)
	streaming(t, db)
	const events, keys = 10_000, 100
	fill(t, db, events, keys)
	drained(t, db)
	streaming(t, db)
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T', '100'
			from generate_series(0, 99) g`)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if again := inOrder(t, log, events+keys); again > 0 {
		t.Errorf("%d events were published twice", again)
	}
	applied(t, log, events+keys)
	if n, m := byNumber(t, log), fromLog(t, log); n != 1 || m < 3000 || m > 3000+keys {
		t.Errorf("%d numberings, %d events from the WAL", n, m)
	}
}
