package relay_test

import (
	"testing"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestWaits: an outbox is waiting if and only if it has work for a relay or an operator. A locked table is an error,
// not work.
func TestWaits(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	asked := func(db *pgtest.DB, schema string) relay.Waiting {
		t.Helper()
		w, err := opened(t, db.Pool, schema).Waits(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	empty := asked(db, "")
	if empty.Work {
		t.Error("an empty outbox waits")
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
		if !asked(db, "").Work {
			t.Errorf("nothing waits with a row in %s", c.table)
		}
		db.Exec(t, `delete from `+c.table)
		if asked(db, "").Work {
			t.Errorf("the outbox waits without a row in %s", c.table)
		}
	}
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload)
		values (clock_timestamp() + interval '1 hour', 't', 'k', 'T', '')`)
	if w := asked(db, ""); w.Work || w.LastID == empty.LastID {
		t.Errorf("with an event due in an hour: %+v, without it: %+v", w, empty)
	}
	if id, err := opened(t, db.Pool, "").LastID(t.Context()); err != nil || id != asked(db, "").LastID || id == 0 {
		t.Errorf("%d was drawn, %v", id, err)
	}
	if same, other := asked(db, db.Schema), asked(outboxDB(t), ""); same.Outbox != empty.Outbox ||
		other.Outbox == empty.Outbox || empty.Outbox == "" {
		t.Errorf("the outbox is %q, and by its schema %q; another is %q", empty.Outbox, same.Outbox, other.Outbox)
	}

	conn := db.Connect(t)
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `lock table outbox_event`)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := opened(t, db.Pool, "").Waits(t.Context()); !pgerr.Is(err, pgerr.LockNotAvailable) {
		t.Errorf("with a lock on the table: %v", err)
	}
	if _, err := opened(t, pgtest.New(t).Pool, "").Waits(t.Context()); !pgerr.Is(err, pgerr.UndefinedTable) {
		t.Errorf("without tables: %v", err)
	}
}

// TestWaitsPlannedOverNothing: a supervisor's connection plans Waits once, over an outbox that vacuum has recorded as
// empty. The plan must not read the whole table once there is a backlog.
func TestWaitsPlannedOverNothing(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, `vacuum outbox_event`)
	tx, end := f.planned("waits")
	defer end()
	f.read(tx)
	fill(t, f.db, 20_000, 200)
	if n := f.read(tx); n > 100 {
		t.Errorf("a look at a backlog reads %d pages", n)
	}
}

// TestWaitsNotForLong: a query that Postgres takes long for is ended, and counts as waiting: a relay's own statements
// begin above the dead rows that make it slow.
func TestWaitsNotForLong(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `alter table outbox_paused_topic rename to outbox_paused_topics`)
	db.Exec(t, `create view outbox_paused_topic as select 1 where pg_sleep(60) is null`)
	if w, err := opened(t, db.Pool, "").Waits(t.Context()); err != nil || !w.Work {
		t.Errorf("%+v, %v", w, err)
	}
}
