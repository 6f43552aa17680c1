package relay_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// appendTo appends n events by plain SQL, spread over keys k0, k1, ...; the payloads of a key count up from a number.
func appendTo(t *testing.T, db *pgtest.DB, topic string, n, keys, from int) {
	t.Helper()
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select $1, 'k' || (g % $3), 'T', convert_to(($4 + g / $3)::text, 'UTF8')
		from generate_series(0, $2 - 1) g`, topic, n, keys, from)
}

func quickHold(c *relay.Config) { c.HoldAfter = 30 * time.Millisecond }

func awaitEmpty(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.AwaitSQL(t, db,
		`select not exists (select from outbox_event) and not exists (select from outbox_claim) and not exists (select
				from outbox_held)
		and not exists (select from outbox_parked) and not exists (select from outbox_parked_key)`)
}

func checkEveryKey(t *testing.T, b *broker, keys, each int) {
	t.Helper()
	for k := range keys {
		checkKey(t, b, fmt.Sprint("k", k), each)
	}
	checkWatermark(t, b.events())
}

// TestP4HoldsUnansweringPartition: the other partitions continue, and later events of this one wait behind its first.
// When it answers again it gets all of them in order, before newer ones.
func TestP4HoldsUnansweringPartition(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	dead := func(_ *event.Event, partition int32) answer {
		if partition == 1 {
			return answer{err: errAway}
		}
		return answer{}
	}
	b.set(dead)
	appendTo(t, db, "payments", 1000, 20, 0)
	var closed, reopened, drainedEvents atomic.Int64
	r := newRelay(t, db, b, config(quickHold, func(c *relay.Config) {
		c.Observer.Closed = func(topic string, partition int32, err error) {
			if topic == "payments" && partition == 1 && err != nil {
				closed.Add(1)
			}
		}
		c.Observer.Reopened = func(string, int32, time.Duration) { reopened.Add(1) }
		c.Observer.Drained = func(n int) { drainedEvents.Add(int64(n)) }
	}))
	stop := startRelay(t, r)
	awaitDrained(t, db)
	appendTo(t, db, "payments", 1000, 20, 50)
	awaitDrained(t, db)
	waiting := 0
	for k := range 20 {
		key := fmt.Sprint("k", k)
		if b.partition(&event.Event{Key: key}) == 1 {
			waiting += 100
			checkKey(t, b, key, 0)
		} else {
			checkKey(t, b, key, 100)
		}
	}
	held, err := newOperator(t, db).Held(t.Context())
	if err != nil || len(held) != 1 || held[0].Partition != 1 || held[0].Events != int64(waiting) {
		t.Errorf("held %+v, want %d: %v", held, waiting, err)
	}
	if r.Stalled() == 0 {
		t.Error("nothing is said to wait")
	}
	b.set(nil)
	awaitEmpty(t, db)
	pgtest.Await(t, "nothing is said to wait", func() (bool, error) { return r.Stalled() == 0, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 100)
	if closed.Load() != 1 || reopened.Load() != 1 || drainedEvents.Load() != int64(waiting) {
		t.Errorf("closed %d times, reopened %d, drained %d of %d", closed.Load(), reopened.Load(), drainedEvents.Load(),
			waiting)
	}
}

// stuckBroker is a broker whose dead partition takes one request at a time, and does not answer it until the test
// allows it.
type stuckBroker struct {
	*broker
	dead    int32
	turn    chan struct{} // one call may wait for the partition's answer, and no other behind it
	waiting chan struct{}
	answer  chan struct{}
}

func (s *stuckBroker) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := make([]error, len(events))
	var rest []event.Event
	var at []int
	verdict := error(nil)
	for i := range events {
		if s.partition(&events[i]) != s.dead {
			rest, at = append(rest, events[i]), append(at, i)
			continue
		}
		if verdict == nil {
			verdict = s.wait(ctx)
		}
		verdicts[i] = verdict
	}
	for i, err := range s.broker.Publish(ctx, rest) {
		verdicts[at[i]] = err
	}
	return verdicts
}

func (s *stuckBroker) wait(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		<-s.answer
		return errAway
	default:
	}
	s.waiting <- struct{}{}
	<-ctx.Done()
	return errNotSent
}

// TestP4HoldFreesWaitingPump: two pumps send to a partition that takes one request at a time. When the first finds it
// dead, the second does not wait for its own request to time out.
func TestP4HoldFreesWaitingPump(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := &stuckBroker{
		broker: newBroker(2), dead: 1, turn: make(chan struct{}, 1), waiting: make(chan struct{}, 100),
		answer: make(chan struct{}),
	}
	appendTo(t, db, "payments", 2000, 200, 0)
	stop := startRelay(t, newRelay(t, db, s, config(
		func(c *relay.Config) { c.HoldAfter = time.Nanosecond; c.Lease = time.Minute })))
	<-s.waiting
	close(s.answer)
	awaitDrained(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_held`); n == 0 || n+len(s.events()) < 2000 {
		t.Errorf("%d held, %d published", n, len(s.events()))
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkWatermark(t, s.events())
}

// TestP4KeepsTheClaimWhenNothingAnswers: in an outage of all of Kafka no event is held.
func TestP4KeepsTheClaimWhenNothingAnswers(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	appendTo(t, db, "payments", 200, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(quickHold)))
	awaitDrained(t, db)
	b.set(func(*event.Event, int32) answer { return answer{err: errAway} })
	appendTo(t, db, "payments", 1000, 20, 10)
	calls := func() int { b.mu.Lock(); defer b.mu.Unlock(); return b.calls }
	before := calls()
	pgtest.Await(t, "many attempts", func() (bool, error) { return calls() > before+10, nil })
	if n := pgtest.One[int](t, db, `select count(*) from outbox_held`); n != 0 {
		t.Errorf("%d events were held in an outage of all partitions", n)
	}
	if n := pgtest.One[int](t, db, `select coalesce(sum(cardinality(ids)), 0) from outbox_claim`); n == 0 || n > 1000 {
		t.Errorf("%d events are claimed", n)
	}
	b.set(nil)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 60)
}

// TestP4OtherLanesContinue: until a partition that does not answer is held, only lanes with an event for it wait. The
// pump claims the other lanes, and does not send acked events of the waiting lanes again.
func TestP4OtherLanesContinue(t *testing.T) {
	t.Parallel()
	const dead = 1
	db, b := outboxDB(t), newBroker(4)
	lane := func(key string) int {
		return pgtest.One[int](t, db, `select (hashtextextended($1::text collate "C", 0) & 31)::int`, key)
	}
	var stuck, beside, free []string // of the dead partition, of others in the same lanes, of other lanes
	waits := map[int]bool{}
	for i := 0; len(stuck) < 2; i++ {
		if key := fmt.Sprint("s", i); b.partition(&event.Event{Key: key}) == dead && !waits[lane(key)] {
			stuck, waits[lane(key)] = append(stuck, key), true
		}
	}
	for i := 0; len(beside) < 1 || len(free) < 4; i++ {
		switch key := fmt.Sprint("f", i); {
		case b.partition(&event.Event{Key: key}) == dead:
		case !waits[lane(key)]:
			free = append(free, key)
		case lane(key) == lane(stuck[0]):
			beside = append(beside, key)
		}
	}
	tries := map[string]int{} // by key
	b.set(func(e *event.Event, partition int32) answer {
		if partition == dead {
			tries[e.Key]++
			return answer{err: errAway}
		}
		return answer{}
	})
	tried := func() map[string]int { b.mu.Lock(); defer b.mu.Unlock(); return maps.Clone(tries) }
	next := map[string]int{}
	add := func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			db.Exec(t, `insert into outbox_event (topic, key, type, payload)
				select 'payments', $1, 'T', convert_to(g::text, 'UTF8')
				from generate_series($2::int, $2 + 9) g`, key, next[key])
			next[key] += 10
		}
	}
	add(stuck[0])
	add(beside...)
	add(free...)
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) {
		c.Pumps, c.HoldAfter = 1, time.Hour
		c.Observer.Held = func(string, int32, int) { t.Error("an event was held") }
	})))
	goOn := func() {
		t.Helper()
		left, before := 0, tried()
		pgtest.Await(t, "the other lanes, or many tries", func() (bool, error) {
			now := tried()
			left = pgtest.One[int](t, db, `select count(*) from outbox_event where key = any ($1)`, free)
			// Their pauses grow: together they last for more than ten seconds.
			many := slices.ContainsFunc(stuck, func(key string) bool { return now[key] > before[key]+12 })
			return left == 0 || many, nil
		})
		if left > 0 {
			t.Fatalf("%d events of other lanes wait for a partition that does not answer", left)
		}
	}
	goOn()
	add(stuck[1], stuck[0])
	add(free...)
	goOn()
	add(free...)
	goOn()
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event where key = any ($1)`,
		append(stuck, beside...)); n != 30+10*len(beside) {
		t.Errorf("%d events of the waiting lanes are left, want %d", n, 30+10*len(beside))
	}
	b.set(nil)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkWatermark(t, b.events())
	want := 0
	for key, n := range next {
		checkKey(t, b, key, n)
		want += n
	}
	if n := len(b.events()); n != want {
		t.Errorf("%d events were sent, want %d: some that had been acked were sent again", n, want)
	}
}

// reachableBroker is a broker that also implements Reach.
type reachableBroker struct{ *broker }

func (reachableBroker) Reach(context.Context) error { return nil }

// TestP4OtherLanesContinueFromStart: a relay's first event goes to a partition that does not answer, before any other
// was acked. Its pump claims the other lanes all the same; once their events are acked, the partition is held.
func TestP4OtherLanesContinueFromStart(t *testing.T) {
	t.Parallel()
	const dead = 1
	db, b := outboxDB(t), newBroker(4)
	keys := map[bool]string{} // true: of the dead partition; false: of another one, in another lane
	lane := func(key string) int {
		return pgtest.One[int](t, db, `select (hashtextextended($1::text collate "C", 0) & 31)::int`, key)
	}
	for i := 0; len(keys) < 2; i++ {
		key := fmt.Sprint("k", i)
		stuck := b.partition(&event.Event{Key: key}) == dead
		if other := keys[!stuck]; keys[stuck] == "" && (other == "" || lane(other) != lane(key)) {
			keys[stuck] = key
		}
	}
	tries := make(chan struct{}, 1)
	b.set(func(_ *event.Event, partition int32) answer {
		if partition != dead {
			return answer{}
		}
		select {
		case tries <- struct{}{}:
		default:
		}
		return answer{err: errAway}
	})
	add := func(key string) {
		db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', $1, 'T', '0')`, key)
	}
	add(keys[true])
	stop := startRelay(t, newRelay(t, db, reachableBroker{b},
		config(func(c *relay.Config) { c.Pumps, c.HoldAfter = 1, time.Millisecond })))
	<-tries
	add(keys[false])
	for range 12 { // their pauses grow: together they last for more than ten seconds
		if <-tries; len(b.events()) > 0 {
			break
		}
	}
	if len(b.events()) == 0 {
		t.Fatal("another lane waits for a partition that does not answer, before any event was acked")
	}
	pgtest.AwaitSQL(t, db, `select count(*) = 1 from outbox_held`)
	b.set(nil)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestP4KeepsTheClaimOfASlowOutage: an attempt may last longer than HoldAfter. When it ends, every partition has failed
// for long enough, and none may be judged before all are known to fail.
func TestP4KeepsTheClaimOfASlowOutage(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	d, err := relay.Drive(t.Context(), newRelay(t, db, b, config(func(c *relay.Config) {
		c.Lease, c.HoldAfter = time.Hour, 1
		c.Observer.Closed = func(topic string, partition int32, _ error) { t.Errorf("%s/%d is held", topic, partition) }
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	fill(t, db, 100, 20)
	if n, err := d.Step(t.Context()); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	calls := 0
	b.set(func(*event.Event, int32) answer {
		if calls++; calls > 4 { // the first attempt tries each partition once
			return answer{}
		}
		return answer{err: errors.New("does not answer")}
	})
	fill(t, db, 100, 20)
	if n, err := d.Step(t.Context()); n != 100 || err != nil {
		t.Errorf("%d events were published, %v", n, err)
	}
}

// TestP4NegativeHoldAfterNeverHolds: with HoldAfter below zero no partition is held.
func TestP4NegativeHoldAfterNeverHolds(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	tries := 0
	b.set(func(_ *event.Event, partition int32) answer {
		if partition == 1 && tries < 10 {
			tries++
			return answer{err: errAway}
		}
		return answer{}
	})
	appendTo(t, db, "payments", 200, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) {
		c.HoldAfter = -1
		c.Observer.Held = func(string, int32, int) { t.Error("an event was held") }
	})))
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 10)
}

// TestP4HoldsARefusedTopic: a wrong access list refuses a topic with very many keys. No key is parked, claims stay
// bounded, other topics continue, and the topic resumes by itself.
func TestP4HoldsARefusedTopic(t *testing.T) {
	if testing.Short() {
		t.Skip("very many keys")
	}
	t.Parallel()
	keys := draw.Size(20_000, 100_000)
	db, b := outboxDB(t), newBroker(8)
	var claimed atomic.Int64
	b.set(func(e *event.Event, _ int32) answer {
		if e.Topic == "payments" {
			return forbidden
		}
		return answer{}
	})
	appendTo(t, db, "payments", keys, keys, 0)
	appendTo(t, db, "payments", keys/10, keys, 1)
	appendTo(t, db, "orders", 1000, 100, 0)
	stop := startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) {
		c.Observer.Claimed = func(n, _ int, _ time.Duration) { claimed.Store(max(claimed.Load(), int64(n))) }
		c.Observer.Parked = func(n int) { t.Errorf("%d events were parked", n) }
	})))
	awaitDrained(t, db)
	appendTo(t, db, "orders", 1000, 100, 10)
	awaitDrained(t, db)
	topics := map[string]int{}
	for _, e := range b.events() {
		topics[e.Topic]++
	}
	if topics["orders"] != 2000 || topics["payments"] != 0 {
		t.Errorf("published while one topic is refused: %v", topics)
	}
	b.set(nil)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	payments := newBroker(8)
	for _, e := range b.events() {
		if e.Topic == "payments" {
			payments.log = append(payments.log, e)
		}
	}
	next, seen := make(map[string]int, keys), map[uuid.UUID]bool{}
	for _, e := range payments.log {
		if seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		if string(e.Payload) != fmt.Sprint(next[e.Key]) {
			t.Fatalf("key %s: %s first occurs where %d was due", e.Key, e.Payload, next[e.Key])
		}
		next[e.Key]++
	}
	if len(seen) != keys+keys/10 || claimed.Load() > 8000 {
		t.Errorf("%d events of %d; the largest claim had %d", len(seen), keys+keys/10, claimed.Load())
	}
	checkWatermark(t, b.events())
}

// TestP4TopicAndPartition: a partition is held, then its topic is refused, then both answer again: the partition's held
// events are published before the topic's.
func TestP4TopicAndPartition(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	away := func(_ *event.Event, partition int32) answer {
		if partition == 1 {
			return answer{err: errAway}
		}
		return answer{}
	}
	b.set(away)
	appendTo(t, db, "payments", 400, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(quickHold)))
	awaitDrained(t, db)
	b.set(func(*event.Event, int32) answer { return forbidden })
	appendTo(t, db, "payments", 400, 20, 20)
	awaitDrained(t, db)
	b.set(away)
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_held where partition <> 1)`)
	appendTo(t, db, "payments", 400, 20, 40)
	awaitDrained(t, db)
	// Some may have been held again, for the topic.
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_held where partition <> 1)`)
	for k := range 20 {
		if key := fmt.Sprint("k", k); b.partition(&event.Event{Key: key}) != 1 {
			checkKey(t, b, key, 60)
		}
	}
	b.set(nil)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 60)
}

// TestP4HeldSurvivesATakeOver: the next owner knows only the held events.
func TestP4HeldSurvivesATakeOver(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	b.set(func(_ *event.Event, partition int32) answer {
		if partition == 1 {
			return answer{err: errAway, written: true}
		}
		return answer{}
	})
	appendTo(t, db, "payments", 400, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(quickHold)))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.set(nil)
	appendTo(t, db, "payments", 400, 20, 20)
	stop = startRelay(t, newRelay(t, db, b, config(quickHold)))
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 20, 40)
}

// TestOnceDrainsWhatIsHeld: a Once finds and publishes the events that an earlier Run has held.
func TestOnceDrainsWhatIsHeld(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	b.set(func(_ *event.Event, partition int32) answer {
		if partition == 1 {
			return answer{err: errAway}
		}
		return answer{}
	})
	appendTo(t, db, "payments", 400, 20, 0)
	stop := startRelay(t, newRelay(t, db, b, config(quickHold)))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.set(nil)
	waiting := pgtest.One[int](t, db, `select count(*) from outbox_held`)
	if n, err := newRelay(t, db, b, config()).Once(t.Context()); err != nil || n != waiting || waiting == 0 {
		t.Errorf("Once published %d of %d: %v", n, waiting, err)
	}
	checkEveryKey(t, b, 20, 20)
}

// TestP4PublisherWithoutPartitions: holding works with a publisher that does not know partitions.
func TestP4PublisherWithoutPartitions(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	b.set(func(e *event.Event, _ int32) answer {
		if e.Topic == "dead" {
			return answer{err: errAway}
		}
		return answer{}
	})
	appendTo(t, db, "dead", 100, 10, 0)
	appendTo(t, db, "payments", 1000, 20, 0)
	stop := startRelay(t, newRelay(t, db, struct{ relay.Publisher }{b}, config(quickHold)))
	awaitDrained(t, db)
	held, err := newOperator(t, db).Held(t.Context())
	if err != nil || len(held) != 1 || held[0].Topic != "dead" || held[0].Partition != 0 || held[0].Events != 100 {
		t.Errorf("held %+v: %v", held, err)
	}
	b.set(nil)
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkWatermark(t, b.events())
}

// TestP4TryWaitsForOlderEvents: a settle has moved the first of a topic's held events to its partition, which does not
// answer, and the relay does not know that yet. A try of the topic must not send the events behind it.
func TestP4TryWaitsForOlderEvents(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(4)
	d, err := relay.Drive(t.Context(), newRelay(t, db, b, config(func(c *relay.Config) { c.Lease = time.Hour })))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	b.set(func(*event.Event, int32) answer { return forbidden })
	fill(t, db, 2, 1)
	if _, err := d.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `update outbox_held set partition = 1 where seq = (select min(seq) from outbox_held)`)
	b.set(nil)
	if err := d.Try(t.Context(), "payments"); err != nil {
		t.Fatal(err)
	}
	if log := b.events(); len(log) != 0 {
		t.Errorf("number %d was sent before the one that is held for its partition", log[0].Position.Seq)
	}
	db.Exec(t, `update outbox_held set partition = -1`)
	if err := d.Try(t.Context(), "payments"); err != nil || len(b.events()) != 1 || b.events()[0].Position.Seq != 1 {
		t.Errorf("then the try sent %+v, %v", b.events(), err)
	}
}
