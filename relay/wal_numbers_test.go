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

// Events from the WAL are numbered by the position of their commit. A change that lowers these numbers must begin a new
// incarnation, or consumers in watermark mode would drop new events.

// applied checks that a consumer in watermark mode that accepts each numbering applies want events.
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
		t.Errorf("a consumer in watermark mode applies %d of %d events", len(events), want)
	}
}

// publishRound publishes part of each key's events from the WAL, and stops the relay cleanly.
func publishRound(t *testing.T, db *pgtest.DB, to *memory, from, each int) {
	t.Helper()
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	for i := range each {
		db.Exec(t,
			`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T',
				convert_to($1, 'UTF8') from generate_series(0, 9) g`, fmt.Sprint(from+i))
	}
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestWALNumbersAfterDrop: after the slot is dropped for good, and another one is made later, numbers continue higher.
func TestWALNumbersAfterDrop(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	publishRound(t, db, to, 0, 1)
	// Moves the next numbers far from the base.
	db.Exec(t, `create table noise as select repeat('x', 100) from generate_series(1, 100000)`)
	publishRound(t, db, to, 1, 4)
	awaitUnread(t, db, slot)
	if _, err := operator.DropWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	if st, err := opened(t, db.Pool, "").WALStatus(t.Context()); err != nil || st != nil {
		t.Errorf("status %+v: %v", st, err)
	}
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	publishRound(t, db, to, 5, 5)
	log := to.events()
	checkOrder(t, log, 100)
	applied(t, log, 100)
	if n := checkByNumber(t, log); n != 1 || fromLog(t, log) != 100 {
		t.Errorf("%d numberings, %d events from the WAL", n, fromLog(t, log))
	}
}

// TestWALNumbersEnd: after three quarters of the numbers that a base allows, another slot is made with another base,
// and a new incarnation begins, although every lane was given back to the table cleanly.
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
	publishRound(t, db, to, 0, 5)
	server.StopFast()
	server.SkipWAL(t, "000000010000C00100000001")
	server.Start(t)
	db.Pool.Reset()
	publishRound(t, db, to, 5, 5)
	log := to.events()
	checkOrder(t, log, 100)
	applied(t, log, 100)
	if n := checkByNumber(t, log); n != 2 {
		t.Errorf("%d numberings, want 2", n)
	}
	if p := log[99].Position; p.Lane != -1 || p.Seq <= 0 || p.Seq >= log[0].Position.Seq+1<<62 {
		t.Errorf("the last event has position %+v", p)
	}
}

// TestWALNewNumbering: events that are committed after an operator has begun a new numbering are not published under
// the old one, and a partition count is not accepted while events may have been written.
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
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.HoldAfter = -1 })))
	awaitStreaming(t, db)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 6)`)
	fill(t, db, 2, 1)
	<-tried
	o := newOperator(t, db)
	if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "resized"); !errors.Is(err,
		operator.ErrUncertain) {
		t.Errorf("with an event that may have been written: %v", err)
	}
	if err := o.AcceptPartitions(t.Context(), "payments", 12, true, "resized"); err != nil {
		t.Fatal(err)
	}
	epoch := pgtest.One[string](t, db, `select outbox_id || '.' || incarnation from outbox_meta`)
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '2')`)
	away.Store(false)
	awaitDrained(t, db)
	fenced, err := o.Fence(t.Context(), "restored")
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '3')`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	checkOrder(t, log, 4)
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

// TestP10LogIsAheadOfWAL: numbers in the log that are beyond the WAL's end reveal a restore.
func TestP10LogIsAheadOfWAL(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	publishRound(t, db, to, 0, 2)
	log := to.events()
	if _, err := operator.CheckNumbers(t.Context(), db.Pool, "", log); err != nil {
		t.Errorf("numbers that were used: %v", err)
	}
	log[7].Position.Seq += 1 << 40
	var outdated *operator.OutdatedError
	if _, err := operator.CheckNumbers(t.Context(), db.Pool, "", log); !errors.As(err, &outdated) ||
		outdated.Lane != -1 {
		t.Errorf("a number beyond the WAL's end: %v", err)
	}
}

// TestWAL8TransactionExceedsNumbers: a transaction has more events than numbers. The rest is published from the table,
// in order.
func TestWAL8TransactionExceedsNumbers(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	r := newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.ClaimEvents = 500 }))
	relay.LowerNumbers(r, 3000)
	stop := startRelay(t, r)
	awaitStreaming(t, db)
	const events, keys = 10_000, 100
	fill(t, db, events, keys)
	awaitDrained(t, db)
	awaitStreaming(t, db)
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T', '100'
			from generate_series(0, 99) g`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if again := checkOrder(t, log, events+keys); again > 0 {
		t.Errorf("%d events were published twice", again)
	}
	applied(t, log, events+keys)
	if n, m := checkByNumber(t, log), fromLog(t, log); n != 1 || m < 3000 || m > 3000+keys {
		t.Errorf("%d numberings, %d events from the WAL", n, m)
	}
}
