package relay_test

import (
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestPlansOfOperators: what is parked alone, and a scheduled event, are found without reading what is parked behind
// keys, or all that is scheduled.
func TestPlansOfOperators(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, `insert into outbox_parked (lane, id, topic, alone, maybe_published, attempts, message_id, source, tenant,
			key, type, content_type, created_at)
		select g % 32, g, 'payments', g % 2000 = 0, false, 1, gen_random_uuid(), '', '', 'k', 'T', '', now()
		from generate_series(1, 20000) g`)
	f.db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, state, reason, code)
		values (1, '', 'payments', 'k', 'parked', '', '')`)
	f.db.Exec(t, `insert into outbox_scheduled (due, topic, key, type)
		select timestamptz '2126-01-02 03:04:05+00' + g * interval '1 s', 'payments', 'k' || g, 'T'
		from generate_series(1, 20000) g`)
	f.db.Exec(t, `analyze outbox_parked`)
	f.db.Exec(t, `analyze outbox_scheduled`)
	if n := f.pages("failures", nil, "", nil, nil, "{}", nil, nil, false, 100); n > 60 {
		t.Errorf("the failures of 1 key and 10 lone events read %d pages", n)
	}
	due := pgtest.One[string](t, f.db, `select due::text from outbox_scheduled where seq = 17000`)
	if n := f.pages("cancel", 17000, due); n > 150 {
		t.Errorf("a cancellation reads %d pages", n)
	}
}
