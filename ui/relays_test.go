package ui_test

import (
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

// TestRelays: each relay and each program that runs a consumer has a line, with what it cannot do and since when.
func TestRelays(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	s := serve(t, ui.Config{}, of("orders", db))
	wants(t, s.get("/relays"), "nobody free – – 32 (0-31)", "No consumer has started yet.")
	db.Exec(t, `insert into relay_member (owner, name, seen, joined, lease_until, version, trouble, trouble_since, acked_at)
		values
		('00000000-0000-4000-8000-000000000001', 'a<i>', now(), now() - interval '2 hours', now() + interval '1 hour', 'v1.2.3',
			'', null, now() - interval '7 min'),
		('00000000-0000-4000-8000-000000000002', 'b', now(), now(), now() + interval '1 hour', '', 'kafka: no <broker>',
			now() - interval '9 min', null),
		('00000000-0000-4000-8000-000000000003', 'c', now() - interval '5 min', now() - interval '1 hour',
			now() - interval '4 min', '', '', null, null)`)
	db.Exec(t, `update outbox_lane set owner = '00000000-0000-4000-8000-000000000001' where lane < 4 or lane = 9`)
	db.Exec(t, `update outbox_meta set kafka_cluster = 'abc'`)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days, seen_at, programs) values
		('ledger', now(), 14, now(), jsonb_build_object('acme', jsonb_build_object('host', 'h1', 'seen', now(), 'group',
			'g1', 'version', 'v4.5.6'))), ('email', now(), 14, now() - interval '3 hours', '{}')`)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at, halted_code,
			halted_reason, trying_at, trying_reason, effect_at) values
		('ledger', 'payments', 0, 1, 1, now() - interval '10 min', 'POISON', 'it <kills>', null, '', null),
		('ledger', 'payments', 1, 1, 1, null, '', '', now() - interval '20 min', 'no such table', now() - interval
			'30 min')`)
	var page string
	pgtest.Await(t, "the doctor has looked again", func() (bool, error) {
		page = s.get("/relays")
		return contains(page, "c was last heard of"), nil
	})
	wants(t, page, "Kafka cluster abc", "schema "+db.Schema, "a<i> v1.2.3 works", "2 h", "5 (0-3,9)",
		" b something fails ", "for 9 min ", ": kafka: no <broker> It is tried again within 5 s.",
		"c silent 5 min", "nobody free", "c was last heard of", "relay status --schema="+db.Schema,
		"acme v4.5.6 h1 ledger g1", "payments/0, for 10 min", ": POISON it <kills> It waits for a person.",
		"payments/1, for 20 min", ": no such table It is tried again within two minutes.",
		"none runs it email started 3 h")
	lacks(t, page, "<kills>", "a<i>", "<broker>")
	if strings.Contains(page, `method="post"`) {
		t.Error("it changes something")
	}
}
