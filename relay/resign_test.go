package relay_test

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// TestP5LanesAreReleasedAfterServerRestart: the server was restarted since the last heartbeat, so a relay that stops
// finds its connection dead. It releases its lanes over another one; otherwise the next relay would wait for the lease.
func TestP5LanesAreReleasedAfterServerRestart(t *testing.T) {
	t.Parallel()
	// A database of its own: other tests' relays would lose their connections.
	db := pgtest.NewDatabase(t, migrations.Outbox)
	stop := startRelay(t, newRelay(t, db, &memory{}, config(func(c *relay.Config) { c.Lease = time.Hour })))
	pgtest.AwaitSQL(t, db, `select count(*) filter (where owner is not null) = $1 from outbox_lane`, relay.Lanes)
	// A relay that publishes knows what it owns. It would leave lanes whose taking is in doubt to their lease.
	db.Exec(t, `insert into outbox_event (topic, key, type) select 't', 'k' || n, 'T' from generate_series(1, 500) n`)
	awaitDrained(t, db)
	terminate(t, db, pgtest.One[int32](t, db, `select pid from pg_stat_activity
		where datname = current_database() and application_name = 'effectonce relay keeper'`))
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_lane where owner is not null`); n != 0 {
		t.Errorf("%d lanes are still owned", n)
	}
}
