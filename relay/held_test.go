package relay_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestHeldEventsAreDiscarded: one event without an answer holds its partition. After its discard the rest is published,
// in order.
func TestHeldEventsAreDiscarded(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	o := newOperator(t, db)
	poison := pgtest.One[uuid.UUID](t, db,
		`insert into outbox_event (topic, key, type, payload) values ('payments', 'poison', 'T', '0')
			returning message_id`)
	b.set(func(e *event.Event, _ int32) answer {
		if e.ID == poison {
			return answer{err: errAway}
		}
		return answer{}
	})
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'poison', 'T', convert_to(g::text,
				'UTF8') from generate_series(1, 5) g`)
	appendTo(t, db, "payments", 200, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(quickHold)))
	pgtest.AwaitSQL(t, db, `select count(*) = 6 from outbox_held where key = 'poison'`)
	list, err := o.HeldEvents(t.Context(), "payments", 1000)
	var behind []operator.HeldEvent
	for _, e := range list {
		if e.Key == "poison" {
			behind = append(behind, e)
		}
	}
	if err != nil || len(behind) != 6 || behind[0].MessageID != poison || !behind[0].MaybePublished ||
		behind[0].Bytes != 1 {
		t.Fatalf("listed %+v: %v", behind, err)
	}
	if _, err := o.DiscardHeld(t.Context(), "payments", uuid.New(), "r"); !errors.Is(err, operator.ErrNotHeld) {
		t.Errorf("a discard of an unknown event: %v", err)
	}
	if _, err := o.DiscardHeld(t.Context(), "payments", poison, " "); err == nil {
		t.Error("a discard without a reason was accepted")
	}
	d, err := o.DiscardHeld(t.Context(), "payments", poison, "nobody reads it")
	if err != nil || d.Events != 1 || d.MaybePublished != 1 {
		t.Errorf("discarded %+v: %v", d, err)
	}
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 10)
	rest, seen := "", map[uuid.UUID]bool{}
	for _, e := range b.events() {
		if e.Key == "poison" && !seen[e.ID] {
			seen[e.ID] = true
			rest += string(e.Payload)
		}
	}
	if rest != "12345" {
		t.Errorf("published after it: %q", rest)
	}
	if got := pgtest.One[string](t, db,
		`select string_agg(concat_ws(' ', operator, action, topic, message_id, detail->>'events'), ', ')
			from outbox_audit`); got != fmt.Sprintf("kim discard held payments %s 1", poison) {
		t.Errorf("audit: %s", got)
	}
}

// TestHeldEventsAreDiscardedOnTheirWay: events that are discarded while they are being published may be in Kafka; the
// lanes continue.
func TestHeldEventsAreDiscardedOnTheirWay(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	o := newOperator(t, db)
	b.set(func(*event.Event, int32) answer { return forbidden })
	appendTo(t, db, "payments", 100, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(quickHold)))
	pgtest.AwaitSQL(t, db, `select count(*) = 100 from outbox_held`)
	awaitDrained(t, db)
	var once atomic.Bool
	gone := make(chan error, 1)
	var d admin.DiscardResult
	b.set(func(*event.Event, int32) answer {
		if once.CompareAndSwap(false, true) {
			var err error
			d, err = o.DiscardHeld(t.Context(), "payments", uuid.Nil, "the topic is gone")
			gone <- err
		}
		return answer{}
	})
	if err := <-gone; err != nil || d.Events != 100 || d.MaybePublished == 0 {
		t.Errorf("discarded %+v: %v", d, err)
	}
	if _, err := o.DiscardHeld(t.Context(), "payments", uuid.Nil, "again"); !errors.Is(err, operator.ErrNotHeld) {
		t.Errorf("nothing is left: %v", err)
	}
	before := len(b.events())
	appendTo(t, db, "payments", 40, 40, 5)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := len(b.events()) - before; n < 40 {
		t.Errorf("%d of 40 later events are published", n)
	}
}
