package operator_test

import (
	"slices"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestReadRelays: the list has each relay with its lanes, also relays without lanes and hanging ones. Free lanes belong
// to none.
func TestReadRelays(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	db.Exec(t, `insert into relay_member (owner, name, seen, joined, lease_until, version, trouble, trouble_since, acked_at)
		values
		('00000000-0000-4000-8000-000000000001', 'a', now() - interval '1 s', now() - interval '1 hour',
			now() + interval '1 min', 'v1', 'kafka: away', now() - interval '3 min', now() - interval '4 min'),
		('00000000-0000-4000-8000-000000000002', 'b', now(), now(), now() + interval '1 min', '', '', null, null),
		('00000000-0000-4000-8000-000000000003', 'c', now() - interval '5 min', now() - interval '1 hour',
			now() - interval '4 min', '', '', null, null)`)
	db.Exec(t, `update outbox_lane set owner = '00000000-0000-4000-8000-000000000001' where lane < 4`)
	db.Exec(t, `update outbox_lane set owner = '00000000-0000-4000-8000-000000000003' where lane = 9`)
	db.Exec(t, `insert into outbox_event (topic, key, type, created_at)
		select 't', 'k' || g, 'T', now() - interval '1 min' from generate_series(1, 200) g`)
	db.Exec(t, `insert into outbox_claim values (2, 1, array[1, 2], array[1, 2])`)
	db.Exec(t, `update outbox_meta set kafka_cluster = 'abc'`)
	r, err := operator.ReadRelays(t.Context(), db.Pool, db.Schema)
	if err != nil || r.Cluster != "abc" || len(r.List) != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	free, a, b, c := r.List[0], r.List[1], r.List[2], r.List[3]
	if free.Owner != nil || len(free.Lanes) != 27 || free.Overdue != 0 || free.Heard != nil || free.Alive {
		t.Errorf("free: %+v", free)
	}
	if a.Name != "a" || !slices.Equal(a.Lanes, []int16{0, 1, 2, 3}) || a.Overdue != 0 || a.Claimed != 2 || !a.Alive ||
		a.Oldest < time.Minute || a.Well < 59*time.Minute || *a.Heard < time.Second {
		t.Errorf("a working relay: %+v", a)
	}
	if a.Version != "v1" || a.Trouble != "kafka: away" || *a.TroubleFor < 3*time.Minute || *a.Acked < 4*time.Minute {
		t.Errorf("what a relay says of itself: %+v", a)
	}
	if b.TroubleFor != nil || b.Acked != nil || b.Trouble != "" {
		t.Errorf("one that says nothing of itself: %+v", b)
	}
	if b.Name != "b" || len(b.Lanes) != 0 || !b.Alive || b.Well != 0 {
		t.Errorf("a relay without lanes: %+v", b)
	}
	if c.Name != "c" || len(c.Lanes) != 1 || c.Overdue != 1 || c.Alive || *c.Heard < 5*time.Minute {
		t.Errorf("a hanging relay: %+v", c)
	}
}
