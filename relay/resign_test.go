package relay_test

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// TestP5LanesAreReleasedAfterServerRestart: the server was restarted since the last heartbeat, so the relay that stops
// finds its connection dead. It gives its lanes back over another, instead of leaving the next one to wait for a lease.
func TestP5LanesAreReleasedAfterServerRestart(t *testing.T) {
	t.Parallel()
	// of its own, or the relays of other tests would lose their connections
	db := pgtest.NewDatabase(t, migrations.Outbox)
	stop := running(t, newRelay(t, db, &memory{}, config(func(c *relay.Config) { c.Lease = time.Hour })))
	pgtest.AwaitSQL(t, db, `select count(*) filter (where owner is not null) = $1 from outbox_lane`, relay.Lanes)
	drained(t, db)
	db.Exec(t, `select pg_terminate_backend(pid, 10000) from pg_stat_activity
		where datname = current_database() and application_name = 'effectonce relay keeper'`)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_lane where owner is not null`); n != 0 {
		t.Errorf("%d lanes are still owned", n)
	}
}
