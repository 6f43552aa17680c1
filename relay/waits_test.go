package relay_test

import (
	"testing"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestWaits: whatever a relay or a person has to do in an outbox is something that waits, and nothing else is.
// Somebody's lock is an error and not a wait.
func TestWaits(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	asked := func() (bool, int64) {
		t.Helper()
		waits, highest, err := relay.Waits(t.Context(), db.Pool, "")
		if err != nil {
			t.Fatal(err)
		}
		return waits, highest
	}
	empty, before := asked()
	if empty {
		t.Error("something waits in an empty outbox")
	}
	const columns = `(lane, id, message_id, source, tenant, topic, key, type, content_type, created_at`
	const values = `(7, 1, gen_random_uuid(), '', '', 't', 'k', 'T', 'text/plain', now()`
	for _, c := range []struct{ table, insert string }{
		{"outbox_event", `insert into outbox_event (topic, key, type, payload) values ('t', 'k', 'T', '')`},
		{"outbox_held", `insert into outbox_held ` + columns + `, partition, seq, sent) values ` + values +
			`, 0, 1, false)`},
		{"outbox_parked", `insert into outbox_parked ` + columns + `, alone, maybe_published, attempts) values ` + values +
			`, true, false, 1)`},
		{"outbox_paused_topic", `insert into outbox_paused_topic (topic, paused_by, reason) values ('t', 'me', 'a test')`},
		{"outbox_scheduled", `insert into outbox_scheduled (due, topic, key, type, payload)
			values (clock_timestamp(), 't', 'k', 'T', '')`},
	} {
		db.Exec(t, c.insert)
		if waits, _ := asked(); !waits {
			t.Errorf("nothing waits with a row in %s", c.table)
		}
		db.Exec(t, `delete from `+c.table)
		if waits, _ := asked(); waits {
			t.Errorf("something waits without a row in %s", c.table)
		}
	}
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload)
		values (clock_timestamp() + interval '1 hour', 't', 'k', 'T', '')`)
	if waits, after := asked(); waits || after == before {
		t.Errorf("what is due in an hour waits: %v; the last id was %d and is %d", waits, before, after)
	}

	conn := db.Connect(t)
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `lock table outbox_event`)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := relay.Waits(t.Context(), db.Pool, ""); !pgerr.Is(err, pgerr.LockNotAvailable) {
		t.Errorf("with a lock on the table: %v", err)
	}
	if _, _, err := relay.Waits(t.Context(), pgtest.New(t).Pool, ""); !pgerr.Is(err, pgerr.UndefinedTable) {
		t.Errorf("without tables: %v", err)
	}
}
