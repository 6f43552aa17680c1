package relay_test

import (
	"errors"
	"testing"

	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/relay"
)

func TestTopicsAreListed(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := operator(t, db)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('b', 3), ('c', 1)`)
	for _, topic := range []string{"a", "b", "b"} {
		if err := o.PauseTopic(t.Context(), topic, "a drill"); err != nil {
			t.Fatal(err)
		}
	}
	list, err := o.Topics(t.Context())
	if err != nil || len(list) != 3 || list[0].Topic != "a" || list[0].Partitions != 0 || list[0].PausedAt == nil || list[1].Partitions != 3 ||
		list[1].PausedBy != "kim" || list[1].Reason != "a drill" || list[2].PausedAt != nil || list[2].PinnedAt == nil {
		t.Errorf("%+v, %v", list, err)
	}
	if err := o.ResumeTopic(t.Context(), "c", "it is not paused"); !errors.Is(err, relay.ErrNoTopic) {
		t.Errorf("error %v", err)
	}
	if err := o.ResumeTopic(t.Context(), "a", "over"); err != nil {
		t.Error(err)
	}
	if got := pgtest.One[string](t, db, `select string_agg(action || ' ' || topic, ', ' order by id) from outbox_audit`); got != "pause topic a, pause topic b, pause topic b, resume topic a" {
		t.Errorf("audit: %s", got)
	}
}

// TestP4PartitionsAreAccepted by an operator, and not while it is uncertain where an event of the topic is.
func TestP4PartitionsAreAccepted(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := operator(t, db)
	pins, err := relay.Pins(db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "r"); !errors.Is(err, relay.ErrNoTopic) {
		t.Errorf("a topic that was never published to: %v", err)
	}
	pin := func(found, want int) {
		t.Helper()
		if n, err := pins(t.Context(), "payments", found); err != nil || n != want {
			t.Errorf("pinned to %d, want %d: %v", n, want, err)
		}
	}
	pin(6, 6)
	pin(12, 6)
	refused := func(what string) {
		t.Helper()
		if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "r"); !errors.Is(err, relay.ErrUncertain) {
			t.Errorf("%s: %v", what, err)
		}
	}
	db.Exec(t, `insert into outbox_event (topic, key, type) values ('payments', 'k', 'T')`)
	db.Exec(t, `insert into outbox_claim select lane, 1, array[id], array[1] from outbox_event`)
	refused("an event is in the journal")
	db.Exec(t, `delete from outbox_claim`)
	db.Exec(t, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type, content_type, created_at)
		values (1, 900, 'payments', -1, 5, true, gen_random_uuid(), '', '', 'k', 'T', '', now())`)
	refused("an event is held that may have been written")
	db.Exec(t, `update outbox_held set sent = false, partition = 3`)
	refused("an event is held for a partition")
	pin(12, 6)
	db.Exec(t, `update outbox_held set partition = -1`)
	if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "the topic was resized"); err != nil {
		t.Error(err)
	}
	pin(12, 12)
	db.Exec(t, `update outbox_held set sent = true`)
	if err := o.AcceptPartitions(t.Context(), "payments", 24, true, "we take the risk"); err != nil {
		t.Error(err)
	}
	pin(24, 24)
	if got := pgtest.One[string](t, db, `select string_agg(concat_ws(' ', action, detail->>'before', detail->>'partitions', detail->>'held'), ', ' order by id) from outbox_audit`); got != "accept partitions 6 12 0, accept partitions 12 24 1" {
		t.Errorf("audit: %s", got)
	}
	if err := o.AcceptPartitions(t.Context(), "payments", 0, false, "r"); err == nil {
		t.Error("no partition at all was accepted")
	}
}
