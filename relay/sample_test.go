package relay_test

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestSample: each field of a Sample changes with the rows that it counts.
func TestSample(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, "outbox") // the fields about transactions are of the whole database
	r := newRelay(t, db, new(memory), config())
	sample := func() relay.Sample {
		t.Helper()
		s, err := r.Sample(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := sample(); s.Backlog != 0 || s.Oldest != 0 || s.Owned != 0 || s.Held != 0 || s.Parked != 0 ||
		s.Scheduled != 0 || s.HeldFor != 0 {
		t.Errorf("an empty outbox: %+v", s)
	}
	db.Exec(t, "insert into outbox_event (topic, key, type) select 't', 'k' || (g % 3), 'T' from "+
		"generate_series(1, 5) g")
	db.Exec(t, "update outbox_event set created_at = created_at - interval '1 hour' where key = 'k1'")
	db.Exec(t, "insert into outbox_scheduled (due, topic, type) values (now() - interval '1 minute', 't', 'T'), "+
		"(now() + interval '1 day', 't', 'T')")
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at, held_at)
		select 1, g, 't', g % 2, g, true, gen_random_uuid(), '', '', '', 'T', '', now(), now() - interval '2 hours'
		from generate_series(1, 3) g`)
	db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, state, since, reason, code)
		values (1, '', 't', 'a', 'parked', now() - interval '3 hours', 'r', 'c'), (1, '', 't', 'b', 'releasing', now(),
			'r', 'c')`)
	db.Exec(t,
		`insert into outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic, key,
				type, content_type, created_at)
		select 1, g, false, false, 1, gen_random_uuid(), '', '', 't', 'a', 'T', '', now() from generate_series(1, 4) g`)
	db.Exec(t, "update outbox_lane set owner = gen_random_uuid(), lease_until = now() + interval '1 minute' where "+
		"lane < 7")
	db.Exec(t, "insert into relay_member (owner, seen) values (gen_random_uuid(), now()), (gen_random_uuid(), now() "+
		"- interval '1 hour')")
	db.Exec(t, "insert into outbox_paused_topic (topic, paused_at, paused_by, reason) values ('u', now() - interval "+
		"'4 hours', 'me', 'r')")
	s := sample()
	if s.Backlog != 5 || s.Oldest < time.Hour || s.Oldest > 2*time.Hour {
		t.Errorf("backlog %d, oldest %v", s.Backlog, s.Oldest)
	}
	old, waiting := 0, 0
	for _, age := range s.Lanes {
		if age >= time.Hour {
			old++
		}
		if age > 0 {
			waiting++
		}
	}
	if want := pgtest.One[int](t, db, "select count(distinct lane)::int from outbox_event"); old != 1 ||
		waiting != want {
		t.Errorf("%d lanes wait for an hour, %d at all, want 1 and %d", old, waiting, want)
	}
	if s.Scheduled != 2 || s.ScheduledLate < time.Minute || s.ScheduledLate > time.Hour {
		t.Errorf("scheduled %d, late %v", s.Scheduled, s.ScheduledLate)
	}
	db.Exec(t, "update outbox_held set topic = 'u' where seq = 3")
	if s := sample(); s.Held != 3 || s.HeldPartitions != 2 {
		t.Errorf("a paused topic: held %d of %d", s.Held, s.HeldPartitions)
	}
	if s.Held != 3 || s.HeldPartitions != 2 || s.HeldFor < 2*time.Hour {
		t.Errorf("held %d of %d for %v", s.Held, s.HeldPartitions, s.HeldFor)
	}
	if s.Parked != 4 || s.ParkedKeys != 2 || s.Releasing != 1 || s.ParkedFor < 3*time.Hour {
		t.Errorf("parked %d, keys %d, releasing %d, for %v", s.Parked, s.ParkedKeys, s.Releasing, s.ParkedFor)
	}
	if s.PausedTopics != 1 || s.PausedFor < 4*time.Hour || s.ArchiveStray != 0 {
		t.Errorf("%d topics paused for %v, %d stray", s.PausedTopics, s.PausedFor, s.ArchiveStray)
	}
	if s.Owned != 7 || s.Members != 1 {
		t.Errorf("%d lanes owned, %d relays", s.Owned, s.Members)
	}
}

// TestSampleSeesAnOldSnapshot: a sample reports a transaction that keeps dead rows, also one that only reads.
func TestSampleSeesAnOldSnapshot(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, "outbox")
	r := newRelay(t, db, new(memory), config())
	reader := db.Connect(t)
	if _, err := reader.Exec(t.Context(), "begin isolation level repeatable read"); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), "select count(*) from outbox_event"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		db.Exec(t, "insert into relay_member (owner, seen) values (gen_random_uuid(), now())")
	}
	s, err := r.Sample(t.Context())
	if err != nil || s.XminAge < 20 || s.OldestTransaction <= 0 {
		t.Errorf("xmin age %d, oldest transaction %v, %v", s.XminAge, s.OldestTransaction, err)
	}
	if _, err := reader.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "no transaction keeps dead rows", func() (bool, error) {
		s, err := r.Sample(t.Context())
		return s.XminAge < 20, err
	})
}
