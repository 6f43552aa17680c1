package relay_test

import (
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestP6PlansOfOtherTables: under a pinned snapshot vacuum removes nothing and records the tables as empty. Claims and
// settles must still look events up by index in the tables beside the outbox, and not scan them.
func TestP6PlansOfOtherTables(t *testing.T) {
	if testing.Short() {
		t.Skip("fills tables")
	}
	t.Parallel()
	f := driven(t, outboxDB(t))
	pin := f.begin(f.db, `set transaction isolation level repeatable read`, `select count(*) from outbox_event`)
	fill(t, f.db, 30_000, 200)
	f.drain()
	f.db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at)
		select g % 32, g, 'payments', 1, g, false, gen_random_uuid(), '', '', 'k', 'T', '', now()
		from generate_series(1, 30000) g`)
	f.db.Exec(t,
		`insert into outbox_parked (lane, id, topic, alone, maybe_published, attempts, message_id, source, tenant, key,
				type, content_type, created_at)
		select g % 32, g, 'payments', false, false, 1, gen_random_uuid(), '', '', 'k', 'T', '', now()
		from generate_series(1, 30000) g`)
	for _, table := range []string{"outbox_event", "outbox_held", "outbox_parked"} {
		f.db.Exec(t, `delete from `+table)
		f.db.Exec(t, `vacuum `+table)
	}
	fill(t, f.db, 200, 200)
	f.db.Exec(t,
		`insert into outbox_claim select lane, 5000000, array_agg(id order by id), array_agg(id order by id)
			from outbox_event group by lane`)
	lanes, firsts, _ := f.Floors()
	for i := range firsts {
		firsts[i] = 5_000_000
	}
	owner := pgtest.One[string](t, f.db, `select min(owner::text) from outbox_lane`)
	at := pgtest.One[[]int16](t, f.db, `select array_agg(lane order by id) from outbox_event`)
	ids := pgtest.One[[]int64](t, f.db, `select array_agg(id order by id) from outbox_event`)
	none, zeros, empty := make([]bool, len(ids)), make([]int32, len(ids)), make([]string, len(ids))
	mine := []any{lanes, f.Fences(lanes), owner}
	for query, args := range map[string][]any{
		"open":                nil,
		"settleAcked":         {firsts, at, ids},
		"settleAckedArchived": {firsts, at, ids, ids, "e"},
		"settlePark":          {firsts, at, ids, none, none, zeros, empty, empty},
		"settleHold":          {firsts, at, ids, ids, zeros, none},
	} {
		if n := f.pages(query, append(mine[:3:3], args...)...); n > 6000 {
			t.Errorf("%s of 200 events reads %d pages", query, n)
		}
	}
	f.exec(pin, "commit")
}
