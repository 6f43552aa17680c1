package operator_test

import (
	"errors"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestTopicState: TopicState counts the events whose order an accepted count would put at risk, as AcceptPartitions
// does.
func TestTopicState(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	o, err := operator.New(db.Pool, db.Schema, "kim")
	if err != nil {
		t.Fatal(err)
	}
	state := func() operator.TopicState {
		t.Helper()
		s, err := o.TopicState(t.Context(), "payments")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if _, err := o.TopicState(t.Context(), "payments"); !errors.Is(err, operator.ErrNoTopic) {
		t.Errorf("an unknown topic: %v", err)
	}
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 6)`)
	db.Exec(t, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
			content_type, created_at)
		select 1, g, 'payments', -1, g, false, gen_random_uuid(), '', '', 'k', 'T', '', now() from generate_series(1, 3) g`)
	if s := state(); s.Partitions != 6 || s.Held != 3 || len(s.HeldIn) != 1 || s.HeldIn[0].Partition != -1 ||
		s.HeldUncertain() != 0 || s.Uncertain || s.WAL {
		t.Errorf("events that were never sent count as uncertain: %+v", s)
	}
	db.Exec(t, `update outbox_held set sent = true where id = 1`)
	db.Exec(t, `update outbox_held set partition = 2 where id = 2`)
	if s := state(); !s.Uncertain || s.HeldUncertain() != 2 || s.Held != 3 || len(s.HeldIn) != 2 {
		t.Errorf("%+v", s)
	}
	db.Exec(t, `delete from outbox_held`)
	db.Exec(t, `insert into outbox_event (topic, key, type) values ('payments', 'k', 'T'), ('refunds', 'k', 'T')`)
	db.Exec(t, `insert into outbox_claim select lane, id, array[id], array[1] from outbox_event`)
	if s := state(); !s.Uncertain || s.Publishing != 1 || s.PublishingAll != 2 {
		t.Errorf("%+v", s)
	}
	if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "r"); !errors.Is(err, operator.ErrUncertain) {
		t.Errorf("AcceptPartitions disagrees: %v", err)
	}
	if err := o.PauseTopic(t.Context(), "payments", "a drill"); err != nil {
		t.Fatal(err)
	}
	if s := state(); s.PausedBy != "kim" || s.Reason != "a drill" || s.PausedAt == nil {
		t.Errorf("%+v", s)
	}
}
