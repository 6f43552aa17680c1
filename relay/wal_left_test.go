package relay_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestWAL5PublicationWasChanged: rows that were inserted while the publication left the table out never come from
// the WAL, and nobody is told of it. They are found in the table, published from there, and the WAL is read on.
func TestWAL5PublicationWasChanged(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	var found atomic.Int32
	stop := running(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) {
		c.RescanEvery = 200 * time.Millisecond
		c.Observer.BelowFloor = func(int16) { found.Add(1) }
	})))
	streaming(t, db)
	appendTo(t, db, "payments", 100, 10, 0)
	drained(t, db)
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
	drained(t, db)
	if found.Load() == 0 {
		t.Error("nobody was told")
	}
	streaming(t, db)
	appendTo(t, db, "payments", 100, 10, 11)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	inOrder(t, log, 210)
	if n := fromLog(t, log[110:]); n != 100 {
		t.Errorf("%d of the last 100 events came from the WAL", n)
	}
	if n := byNumber(t, log); n != 2 {
		t.Errorf("%d numberings: what stands in the table may have been published", n)
	}
}

// TestWAL5WrongPublication: a relay that reads notices that the publication leaves its table out, publishes from
// the table, and reads the WAL again when it is mended.
func TestWAL5WrongPublication(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	r := newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.RescanEvery = 200 * time.Millisecond }))
	stop := running(t, r)
	streaming(t, db)
	db.Exec(t, `alter publication `+slot+` set table outbox_scheduled`)
	appendTo(t, db, "payments", 100, 10, 0)
	drained(t, db)
	pgtest.Await(t, "a reason", func() (bool, error) { return r.WALUnavailable() != nil, nil })
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	streaming(t, db)
	appendTo(t, db, "payments", 100, 10, 10)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	inOrder(t, log, 200)
	if n := fromLog(t, log[100:]); n != 100 {
		t.Errorf("%d of the last 100 events came from the WAL", n)
	}
}
