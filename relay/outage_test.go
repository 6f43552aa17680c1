package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// outages counts the outages that a relay reports.
type outages struct{ away, back atomic.Int32 }

func (o *outages) observe(c *relay.Config) {
	c.Observer.Outage = func(_ string, err error) {
		if err != nil {
			o.away.Add(1)
		} else {
			o.back.Add(1)
		}
	}
}

func (o *outages) is(t *testing.T, when string, away, back int32) {
	t.Helper()
	if a, b := o.away.Load(), o.back.Load(); a != away || b != back {
		t.Errorf("%s: %d outages began and %d ended, want %d and %d", when, a, b, away, back)
	}
}

// TestOutageLastsUntilClaimsWork: pumps have no connection, while heartbeats and probes work. The outage ends when
// claims work again.
func TestOutageLastsUntilClaimsWork(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	var cut atomic.Bool
	var refused, pump atomic.Int32 // attempts to connect; the pump's process
	isPump := func(c *pgx.ConnConfig) bool { return c.RuntimeParams["application_name"] == "effectonce relay pump 0" }
	cfg := db.Pool.Config()
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if isPump(c) && cut.Load() {
			refused.Add(1)
			return errors.New("no route")
		}
		return nil
	}
	cfg.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		if isPump(c.Config()) {
			pump.Store(int32(c.PgConn().PID()))
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var said outages
	stop := startRelay(t, newRelay(t, &pgtest.DB{Pool: pool}, to,
		config(func(c *relay.Config) { c.Pumps = 1; said.observe(c) })))
	fill(t, db, 100, 10)
	awaitDrained(t, db)
	said.is(t, "before", 0, 0)

	cut.Store(true)
	terminate(t, db, pump.Load())
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T', '10'
			from generate_series(0, 9) g`)
	// Before there was work, an outage may have begun and ended.
	attempts := func(n int32) {
		from := refused.Load()
		pgtest.Await(t, "more attempts to claim", func() (bool, error) { return refused.Load() >= from+n, nil })
	}
	attempts(2)
	away, back := said.away.Load(), said.back.Load()
	if away != back+1 {
		t.Errorf("claims fail, and %d outages began and %d ended", away, back)
	}
	attempts(5)
	said.is(t, "while claims fail", away, back)

	cut.Store(false)
	awaitDrained(t, db)
	pgtest.Await(t, "the end of the outage", func() (bool, error) { return said.back.Load() > back, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	said.is(t, "afterwards", away, away)
	checkOrder(t, to.events(), 110)
}

// TestOutageLastsWhileAllIsHeld: Kafka is away, and all events are for one partition. Nobody knows that others answer,
// so the outage lasts while they are held; the relay counts among those that share the lanes.
func TestOutageLastsWhileAllIsHeld(t *testing.T) {
	t.Parallel()
	db, b, log := outboxDB(t), newBroker(4), &text{}
	var said outages
	stop := startRelay(t, newRelay(t, db, b, config(quickHold, said.observe, func(c *relay.Config) {
		c.Lease, c.Logger = 5*time.Second, slog.New(slog.NewTextHandler(log, nil))
	})))
	appendTo(t, db, "payments", 20, 20, 0)
	awaitDrained(t, db)
	var tries atomic.Int32
	b.set(func(*event.Event, int32) answer { tries.Add(1); return answer{err: errAway} })
	appendTo(t, db, "payments", 1, 1, 1)
	pgtest.AwaitSQL(t, db, "select count(*) = 1 from outbox_held")
	from := tries.Load()
	pgtest.Await(t, "tries", func() (bool, error) { return tries.Load() > from+3, nil })
	if said.is(t, "while all is held", 1, 0); t.Failed() {
		return
	}
	pgtest.AwaitSQL(t, db, "select seen > joined and trouble like 'kafka: %' from relay_member")
	if text := log.end(); strings.Contains(text, "while others do") ||
		!strings.Contains(text, "nothing else was to be sent") {
		t.Errorf("the log says: %s", text)
	}
	b.set(nil)
	awaitEmpty(t, db)
	pgtest.Await(t, "the end of the outage", func() (bool, error) { return said.back.Load() > 0, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	said.is(t, "afterwards", 1, 1)
}

// TestOutageLastsUntilAllLanesAreSent: some lanes cannot be sent while others can. The outage ends when all lanes can.
func TestOutageLastsUntilAllLanesAreSent(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	var mended atomic.Bool
	var acks atomic.Int32
	to := &memory{verdict: func(_ int, e event.Event) error {
		if e.Position.Lane%2 == 0 && !mended.Load() {
			return errors.New("timed out")
		}
		acks.Add(1)
		return nil
	}}
	var said outages
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.HoldAfter = -1; said.observe(c) })))
	fill(t, db, 100, 100)
	pgtest.Await(t, "the outage", func() (bool, error) { return said.away.Load() > 0, nil })
	for range 5 {
		before := acks.Load()
		db.Exec(t,
			`insert into outbox_event (topic, key, type, payload) select 'others', 'o' || g, 'T', '0'
				from generate_series(0, 31) g`)
		pgtest.Await(t, "acks in other lanes", func() (bool, error) { return acks.Load() > before, nil })
	}
	said.is(t, "while some lanes cannot be sent", 1, 0)
	mended.Store(true)
	awaitDrained(t, db)
	pgtest.Await(t, "the end of the outage", func() (bool, error) { return said.back.Load() > 0, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	said.is(t, "afterwards", 1, 1)
}
