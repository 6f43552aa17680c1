package relay_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

// P10: a restored database lacks the events that were published after the backup. The Kafka log reveals it.
func TestP10LogIsAheadOfDatabase(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `update outbox_lane set reserved_seq = 100 * lane`)
	outbox := pgtest.One[string](t, db, `select outbox_id::text from outbox_meta`)
	at := func(epoch string, lane int16, seq int64) event.Event {
		return event.Event{Topic: "payments", Position: event.Position{
			Epoch: epoch, Lane: lane, Seq: seq, Partition: 2,
			Offset: 7,
		}}
	}
	check := func(events ...event.Event) error { return operator.CheckNumbers(t.Context(), db.Pool, "", events) }
	other := "0198b2f0-5a3e-7c11-9d3e-2f1f6a7b8c9d"

	if err := check(at(outbox+".1", 3, 300), at(other+".1", 3, 9999), at("", 3, 9999), at("nonsense", 3, 9999),
		at(outbox+".x", 3, 9999)); err != nil {
		t.Errorf("reserved numbers, and another outbox's, are no evidence: %v", err)
	}
	var behind *operator.BehindError
	if err := check(at(outbox+".1", 4, 5), at(outbox+".1", 3, 301)); !errors.As(err, &behind) ||
		behind.Newer || behind.Lane != 3 || behind.Seen != 301 || behind.Reserved != 300 ||
		behind.Topic != "payments" || behind.Offset != 7 {
		t.Errorf("a number above the reserved ones: %v", err)
	}
	if err := check(at(outbox+".2", 3, 1)); !errors.As(err, &behind) || !behind.Newer ||
		!strings.Contains(err.Error(), "docs/failover.md") {
		t.Errorf("an incarnation that this outbox has not begun: %v", err)
	}
	db.Exec(t, `update outbox_meta set incarnation = 2`)
	if err := check(at(outbox+".1", 3, 301)); err != nil {
		t.Errorf("the numbers of an earlier incarnation are no evidence: %v", err)
	}
}

func TestPinnedTopics(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('b', 3), ('a', 1)`)
	got, err := operator.PinnedTopics(t.Context(), db.Pool, "")
	if err != nil || len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("got %v, %v", got, err)
	}
}
