package relay_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// TestEventsHaveTheDatabasesTime: the timestamps of published events, held ones included, are the database's even if
// the relay's clock is days behind.
func TestEventsHaveTheDatabasesTime(t *testing.T) {
	t.Parallel()
	const ahead = 72 * time.Hour
	db := pgtest.NewDatabase(t, migrations.Outbox)
	db.Exec(t, `create schema ahead`)
	db.Exec(t, `create function ahead.clock_timestamp() returns timestamptz language sql volatile as
		$$select pg_catalog.clock_timestamp() + interval '72 hours'$$`)
	to := &memory{}
	away := true
	to.verdict = func(_ int, e event.Event) error {
		if d := time.Until(e.Position.Timestamp); d < ahead-time.Hour || d > ahead+time.Hour {
			t.Errorf("event %s has the time %v, %v from this machine's time", e.ID, e.Position.Timestamp, d)
		}
		if away && e.Topic == "away" {
			return refusedTopic
		}
		return nil
	}
	r, err := relay.New(poolAt(t, pgtest.WithSearchPath(t, db.URL, "ahead,pg_catalog,public")), to, config())
	if err != nil {
		t.Fatal(err)
	}
	fill(t, db, 10, 2)
	db.Exec(t, `insert into outbox_event (topic, key, type) values ('away', 'k', 'T')`)
	stop := startRelay(t, r)
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_held)`)
	to.mu.Lock()
	away = false
	to.mu.Unlock()
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_held)`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	ids := map[uuid.UUID]bool{} // a held event is tried alone before the others of its partition
	for _, e := range to.events() {
		ids[e.ID] = true
	}
	if len(ids) != 11 {
		t.Errorf("%d events are published, want 11", len(ids))
	}
}
