package relay_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

func TestTopicsAreListed(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('b', 3), ('c', 1)`)
	for _, topic := range []string{"a", "b", "b"} {
		if err := o.PauseTopic(t.Context(), topic, "a drill"); err != nil {
			t.Fatal(err)
		}
	}
	list, err := o.Topics(t.Context())
	if err != nil || len(list) != 3 || list[0].Topic != "a" || list[0].Partitions != 0 || list[0].PausedAt == nil ||
		list[1].Partitions != 3 ||
		list[1].PausedBy != "kim" || list[1].Reason != "a drill" || list[2].PausedAt != nil || list[2].PinnedAt == nil {
		t.Errorf("%+v, %v", list, err)
	}
	if err := o.ResumeTopic(t.Context(), "c", "it is not paused"); !errors.Is(err, operator.ErrNoTopic) {
		t.Errorf("error %v", err)
	}
	if err := o.ResumeTopic(t.Context(), "a", "over"); err != nil {
		t.Error(err)
	}
	if got := pgtest.One[string](t, db,
		`select string_agg(action || ' ' || topic, ', ' order by id) from outbox_audit`); got != "pause topic a, "+
		"pause topic b, pause topic b, resume topic a" {
		t.Errorf("audit: %s", got)
	}
}

// TestP4PartitionsAreAccepted: by an operator, and not while an event of the topic may have been written.
func TestP4PartitionsAreAccepted(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	box, err := relay.Open(db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "r"); !errors.Is(err, operator.ErrNoTopic) {
		t.Errorf("a topic that was never published to: %v", err)
	}
	pin := func(found, want int) {
		t.Helper()
		if n, err := box.Pin(t.Context(), "", "payments", found); err != nil || n != want {
			t.Errorf("pinned to %d, want %d: %v", n, want, err)
		}
	}
	pin(6, 6)
	pin(12, 6)
	refused := func(what string) {
		t.Helper()
		if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "r"); !errors.Is(err, operator.ErrUncertain) {
			t.Errorf("%s: %v", what, err)
		}
	}
	db.Exec(t, `insert into outbox_event (topic, key, type) values ('payments', 'k', 'T')`)
	db.Exec(t, `insert into outbox_claim select lane, 1, array[id], array[1] from outbox_event`)
	refused("an event is in the journal")
	db.Exec(t, `delete from outbox_claim`)
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at)
		values (1, 900, 'payments', -1, 5, true, gen_random_uuid(), '', '', 'k', 'T', '', now())`)
	refused("an event is held that may have been written")
	db.Exec(t, `update outbox_held set sent = false, partition = 3`)
	refused("an event is held for a partition")
	pin(12, 6)
	db.Exec(t, `update outbox_held set partition = -1`)
	const epoch = `select outbox_id::text || '.' || incarnation from outbox_meta`
	before := pgtest.One[string](t, db, epoch)
	if err := o.AcceptPartitions(t.Context(), "payments", 12, false, "the topic was resized"); err != nil {
		t.Error(err)
	}
	pin(12, 12)
	if after := pgtest.One[string](t, db, epoch); after != before {
		t.Errorf("a new numbering was begun without need, %s: consumers in watermark mode would halt", after)
	}
	db.Exec(t, `update outbox_held set sent = true`)
	if err := o.AcceptPartitions(t.Context(), "payments", 24, true, "we take the risk"); err != nil {
		t.Error(err)
	}
	pin(24, 24)
	// In its new partition a held event may have a lower number than events that are there already.
	if after := pgtest.One[string](t, db, epoch); after == before {
		t.Error("no new numbering has begun: a consumer in watermark mode would drop the held events")
	}
	if got := pgtest.One[string](t, db,
		`select string_agg(concat_ws(' ', action, detail->>'before', detail->>'partitions', detail->>'held'), ', '
				order by id) from outbox_audit`); got != "accept partitions 6 12 0, accept partitions 12 24 1" {
		t.Errorf("audit: %s", got)
	}
	if err := o.AcceptPartitions(t.Context(), "payments", 0, false, "r"); err == nil {
		t.Error("zero partitions were accepted")
	}
}

// TestP4AcceptedHeldEventsKeepOrder: the new count maps the held events of two partitions to one. They are published as
// one list, in the order of their numbers, and before later events.
func TestP4AcceptedHeldEventsKeepOrder(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 2)`)
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k', 'T', convert_to(g::text, 'UTF8')
			from generate_series(0, 199) g`)
	db.Exec(t, `update outbox_lane set reserved_seq = 1000`)
	db.Exec(t, `with moved as (delete from outbox_event returning *)
		insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
			content_type, payload, created_at)
		select lane, id, topic, id % 2, id, false, message_id, source, tenant, key, type, content_type, payload,
			created_at from moved`)
	if err := newOperator(t, db).AcceptPartitions(t.Context(), "payments", 1, true,
		"the topic was resized"); err != nil {
		t.Fatal(err)
	}
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k', 'T', convert_to(g::text, 'UTF8')
			from generate_series(200, 229) g`)
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) { c.ClaimEvents = 32 })))
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkWatermark(t, b.events())
	checkKey(t, b, "k", 230)
}

// TestP4LargeBacklogIsAcceptedInParts: relays wait only for one part of the held events at a time, hold new events
// meanwhile, and send none of the topic's events.
func TestP4LargeBacklogIsAcceptedInParts(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 2)`)
	key := "s0"
	for i := 0; b.partition(&event.Event{Key: key}) != 1; i++ {
		key = fmt.Sprint("s", i)
	}
	n := 0
	add := func(events int) {
		t.Helper()
		db.Exec(t, `insert into outbox_event (topic, key, type, payload)
			select 'payments', $1, 'T', convert_to(g::text, 'UTF8')
			from generate_series($2::int, $3) g`, key, n, n+events-1)
		n += events
	}
	add(5_000)
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, payload, created_at)
		select lane, id, topic, 1, id, false, message_id, source, tenant, key, type, content_type, payload, created_at
		from outbox_event`)
	db.Exec(t, `delete from outbox_event`)
	db.Exec(t, `update outbox_lane set reserved_seq = 100000`)
	b.set(func(_ *event.Event, partition int32) answer {
		if partition == 1 {
			return answer{err: errAway}
		}
		return answer{}
	})
	appendTo(t, db, "payments", 100, 1, 0) // of another key, so that the relay knows that Kafka answers
	stop := startRelay(t, newRelay(t, db, b, config(quickHold)))
	awaitDrained(t, db)
	accepted := make(chan error, 1)
	go func() {
		accepted <- newOperator(t, db).AcceptPartitions(t.Context(), "payments", 1, true, "the topic was resized")
	}()
	for done := false; !done; {
		add(10)
		select {
		case err := <-accepted:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
		}
	}
	topics, err := newOperator(t, db).Topics(t.Context())
	if err != nil || len(topics) != 1 || topics[0].PausedAt != nil || topics[0].Partitions != 1 {
		t.Fatalf("the topic is not as it was accepted: %+v, %v", topics, err)
	}
	// Of the events that were held before: a relay holds new ones meanwhile, as many as it claims.
	most := pgtest.One[int](t, db, `select max(n) from (select count(*) as n from outbox_held
		where convert_from(payload, 'UTF8')::int < 5000 group by xmin::text) parts`)
	if most > 2_000 {
		t.Errorf("%d held events were moved in one transaction, for which all relays wait", most)
	}
	b.mu.Lock()
	b.partitions, b.verdict = 1, nil
	b.mu.Unlock()
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkKey(t, b, key, n)
	log := b.events()
	for i := range log {
		log[i].Position.Partition = 0
	}
	checkWatermark(t, log)
}

// TestP4InterruptedAcceptanceKeepsOrder: an acceptance has moved some of a lane's held events, and the topic is
// resumed. The relay knows that, and does not send later events before them.
func TestP4InterruptedAcceptanceKeepsOrder(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 1)`)
	add := func(from, to int) {
		t.Helper()
		db.Exec(t, `insert into outbox_event (topic, key, type, payload)
			select 'payments', 'k', 'T', convert_to(g::text, 'UTF8')
			from generate_series($1::int, $2::int - 1) g`, from, to)
	}
	add(0, 15_000)
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, payload, created_at)
		select lane, id, topic, 0, id, false, message_id, source, tenant, key, type, content_type, payload, created_at
		from outbox_event`)
	db.Exec(t, `delete from outbox_event`)
	db.Exec(t, `update outbox_lane set reserved_seq = 100000`)
	d, err := relay.Drive(t.Context(), newRelay(t, db, b,
		config(func(c *relay.Config) { c.Lease, c.ClaimEvents = time.Hour, 100_000 })))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	b.set(func(*event.Event, int32) answer { return answer{err: errAway} })
	if _, err := d.Step(t.Context()); err != nil { // now it knows the held events
		t.Fatal(err)
	}
	db.Exec(t, `create function cut() returns trigger language plpgsql as $$ begin raise 'cut off'; end $$`)
	db.Exec(t,
		`create trigger cut before update on outbox_held for each row when (old.seq = 100) execute function cut()`)
	if err := newOperator(t, db).AcceptPartitions(t.Context(), "payments", 2, true,
		"the topic was resized"); err == nil {
		t.Fatal("the acceptance was not interrupted")
	}
	db.Exec(t, `drop trigger cut on outbox_held`)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_held where partition = -1`); n != 14_000 {
		t.Fatalf("%d events were moved", n)
	}
	if err := newOperator(t, db).ResumeTopic(t.Context(), "payments", "nobody remembers why"); err != nil {
		t.Fatal(err)
	}
	b.set(nil)
	add(15_000, 15_100)
	for range 50 {
		if err := d.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(b.events()) >= 15_100 {
			break
		}
	}
	checkKey(t, b, "k", 15_100)
}

// TestP4OvertakenAndHeld: a partition does not get its events, other partitions get later ones of the same lanes, and
// then the topic is refused as a whole. No held event was sent; but under another partition count one may follow the
// later events, and a consumer in watermark mode would drop it.
func TestP4OvertakenAndHeld(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(2)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 2)`)
	tried, refused := map[uuid.UUID]bool{}, false
	b.set(func(e *event.Event, partition int32) answer {
		switch refused = refused || tried[e.ID]; {
		case refused:
			return forbidden
		case partition == 1:
			return answer{}
		}
		tried[e.ID] = true
		return answer{err: errNotSent}
	})
	appendTo(t, db, "payments", 640, 64, 0)
	// A failed heartbeat would raise the fences, and written events that are not settled yet would be held as well.
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) { c.Lease = time.Minute })))
	awaitDrained(t, db)
	for _, e := range b.events() {
		if pgtest.One[bool](t, db, `select exists (select from outbox_held where message_id = $1)`, e.ID) {
			t.Fatalf("event %s was written and is held: the test proves nothing", e.ID)
		}
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_held where partition = -1`); n == 0 || n == 640 {
		t.Fatalf("%d of 640 events are held for the topic: the test proves nothing", n)
	}
	o := newOperator(t, db)
	if err := o.AcceptPartitions(t.Context(), "payments", 1, false, "the topic was resized"); !errors.Is(err,
		operator.ErrUncertain) {
		t.Errorf("accepted without a new numbering, which a consumer in watermark mode needs: %v", err)
	}
	if err := o.AcceptPartitions(t.Context(), "payments", 1, true, "the topic was resized"); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.partitions, b.verdict = 1, nil
	b.mu.Unlock()
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// By its new count the topic has one partition, and the other events are in it.
	log := b.events()
	for i := range log {
		log[i].Position.Partition = 0
	}
	checkWatermark(t, log)
}

// TestWALResizedTopic: events read from the WAL are not in the journal, and may be read again. Therefore a new
// partition count begins a new numbering, and later events from the WAL have it.
func TestWALResizedTopic(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 2)`)
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	fill(t, db, 100, 10)
	awaitDrained(t, db)
	if err := newOperator(t, db).AcceptPartitions(t.Context(), "payments", 4, false,
		"the topic was resized"); err != nil {
		t.Fatal(err)
	}
	appendTo(t, db, "payments", 100, 10, 10)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	checkOrder(t, log, 200)
	if n := fromLog(t, log[:100]) + fromLog(t, log[100:]); n != 200 {
		t.Errorf("%d events came from the WAL, want 200", n)
	}
	epoch := pgtest.One[string](t, db, `select outbox_id::text || '.' || incarnation from outbox_meta`)
	for i, e := range log {
		if (e.Position.Epoch == epoch) != (i >= 100) {
			t.Fatalf("event %d has the numbering %s, want %s", i, e.Position.Epoch, epoch)
		}
	}
}

// TestP4ResizedTopic: Kafka's topic grows while the relay runs. Its events are held until an operator accepts the new
// count. The acceptance needs no new numbering where all attempts meanwhile were certainly refused.
func TestP4ResizedTopic(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db, topic, brokers := outboxDB(t), kafkatest.Topic(t, 3), kafkatest.Brokers(t)
	to := toKafka(t, db, brokers, publisher.Config{RecheckEvery: 10 * time.Millisecond})
	reopened := make(chan time.Duration, 100)
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) {
		c.Observer.Reopened = func(_ string, _ int32, after time.Duration) { reopened <- after }
	})))
	fillTopic(t, db, topic, 0, 10)
	pgtest.AwaitSQL(t, db, nothingLeft)
	kafkatest.Grow(t, brokers, topic, 6)
	// Events arrive until the publisher has seen the new count and one is held.
	n := 10
	pgtest.Await(t, "a held event", func() (bool, error) {
		if pgtest.One[int](t, db, `select count(*) from outbox_held`) > 0 {
			return true, nil
		}
		fillTopic(t, db, topic, n, 1)
		n++
		return false, nil
	})
	fillTopic(t, db, topic, n, 10)
	n += 10
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_event) and not exists (select from outbox_claim)`)
	o := newOperator(t, db)
	pgtest.Await(t, "an acceptance", func() (bool, error) { // refused while an event is being tried
		err := o.AcceptPartitions(t.Context(), topic, 6, false, "the topic was resized")
		if errors.Is(err, operator.ErrUncertain) {
			return false, nil
		}
		return err == nil, err
	})
	pgtest.AwaitSQL(t, db, nothingLeft)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	wide := false
	for _, r := range kafkatest.ReadAll(t, topic) {
		seen[string(r.Key)+"/"+string(r.Value)] = true
		wide = wide || r.Partition > 2
	}
	if len(seen) != 20*n || !wide || len(reopened) == 0 {
		t.Errorf("%d events in Kafka, want %d; new partitions are used: %t", len(seen), 20*n, wide)
	}
}
