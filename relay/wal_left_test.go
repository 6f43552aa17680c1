package relay_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestWAL5PublicationWasChanged: rows that were inserted while the publication lacked the table are never in the
// stream, and Postgres does not report it. The relay finds them in the table, publishes them from there, and continues
// to read the WAL.
func TestWAL5PublicationWasChanged(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	var found atomic.Int32
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) {
		c.RescanEvery = 200 * time.Millisecond
		c.Observer.BelowFloor = func(int16) { found.Add(1) }
	})))
	awaitStreaming(t, db)
	appendTo(t, db, "payments", 100, 10, 0)
	awaitDrained(t, db)
	tx, err := db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`alter publication ` + slot + ` set table outbox_scheduled`,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T', '10'
			from generate_series(0, 9) g`,
		`alter publication ` + slot + ` set table outbox_event, outbox_scheduled`,
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitDrained(t, db)
	if found.Load() == 0 {
		t.Error("the problem was not reported")
	}
	awaitStreaming(t, db)
	appendTo(t, db, "payments", 100, 10, 11)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	checkOrder(t, log, 210)
	if n := fromLog(t, log[110:]); n != 100 {
		t.Errorf("%d of the last 100 events came from the WAL", n)
	}
	if n := checkByNumber(t, log); n != 2 {
		t.Errorf("%d numberings: rows of the table may have been published", n)
	}
}

// TestWAL5WrongPublication: a running relay notices that the publication lacks its table, publishes from the table, and
// reads the WAL again when the publication is corrected.
func TestWAL5WrongPublication(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	r := newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.RescanEvery = 200 * time.Millisecond }))
	stop := startRelay(t, r)
	awaitStreaming(t, db)
	db.Exec(t, `alter publication `+slot+` set table outbox_scheduled`)
	appendTo(t, db, "payments", 100, 10, 0)
	awaitDrained(t, db)
	pgtest.Await(t, "a reason", func() (bool, error) { return r.WALUnavailable() != nil, nil })
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	awaitStreaming(t, db)
	appendTo(t, db, "payments", 100, 10, 10)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	checkOrder(t, log, 200)
	if n := fromLog(t, log[100:]); n != 100 {
		t.Errorf("%d of the last 100 events came from the WAL", n)
	}
}
