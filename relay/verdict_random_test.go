package relay_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestP4EverythingAtOnce: two relays start and stop; a broker loses answers, refuses records and topics, stops
// answering for partitions and writes late; an operator releases, discards, pauses and resumes; some events are
// scheduled. Floors rise as often as possible. In the end all events that were not discarded are published and
// archived, first occurrences are in order (if keys are parked, not if events are parked alone), no row was below a
// floor, and consumers by id and by number apply each event once. EFFECTONCE_TEST_SEED repeats a run;
// EFFECTONCE_TEST_RUNS sets the number of runs.
func TestP4EverythingAtOnce(t *testing.T) {
	t.Parallel()
	seed := draw.Seed(t)
	runs, _ := strconv.Atoi(os.Getenv("EFFECTONCE_TEST_RUNS"))
	for i := range uint64(max(runs, 3)) {
		t.Run(strconv.FormatUint(seed+i, 10), func(t *testing.T) {
			t.Parallel()
			newRandomRun(t, seed+i).run(t)
		})
	}
}

// randomRun is the state of a run.
type randomRun struct {
	db     *pgtest.DB
	b      *broker
	rnd    *rand.Rand // of the test's goroutine
	inside *rand.Rand // of the broker, under its lock
	park   relay.FailurePolicy
	bulk   bool // claims read in bulk

	dead      map[int32]int  // partition: number of calls that it does not answer
	forbidden map[string]int // topic: number of calls that are refused
	next      map[string]int // by key
	discarded map[uuid.UUID]bool

	held, awaitDrained, parked, behind, released atomic.Int64
}

const (
	weekKeys   = 24
	weekRounds = 30
)

func newRandomRun(t *testing.T, seed uint64) *randomRun {
	w := &randomRun{
		db: pgtest.New(t, migrations.Outbox), b: newBroker(4), rnd: rand.New(rand.NewPCG(seed, 1)),
		inside: rand.New(rand.NewPCG(seed, 2)), dead: map[int32]int{}, forbidden: map[string]int{},
		next: map[string]int{}, discarded: map[uuid.UUID]bool{},
	}
	w.park = []relay.FailurePolicy{relay.ParkKey, relay.ParkKey, relay.ParkEvent}[seed%3]
	w.bulk = seed%2 == 0
	w.b.set(w.verdict)
	return w
}

// verdict chooses a random fault. It is called with the broker's lock held.
func (w *randomRun) verdict(e *event.Event, partition int32) answer {
	rnd := w.inside
	if w.dead[partition] > 0 {
		w.dead[partition]--
		return answer{err: errAway, written: rnd.IntN(4) == 0}
	}
	if w.forbidden[e.Topic] > 0 {
		w.forbidden[e.Topic]--
		return forbidden
	}
	switch n := rnd.IntN(1000); {
	case n < 12:
		return tooLarge
	case n < 20:
		return answer{err: errAway, written: true}
	case n < 30:
		return answer{err: errAway, late: true}
	case n < 33:
		w.dead[partition] = 1 + rnd.IntN(30)
		return answer{err: errAway}
	case n == 33:
		w.forbidden[e.Topic] = 1 + rnd.IntN(40)
		return forbidden
	}
	return answer{}
}

func (w *randomRun) run(t *testing.T) {
	o := newOperator(t, w.db)
	relays := []func(){w.relay(t), w.relay(t)}
	for range weekRounds {
		w.append(t, 60)
		w.lateWrites()
		switch n := w.rnd.IntN(6); {
		case n < 2:
			relays[n]()
			relays[n] = w.relay(t)
		case n < 4:
			w.operate(t, o)
		}
		w.awaitPart(t, 200)
	}
	w.b.set(nil)
	w.lateWrites()
	for _, topic := range []string{"t0", "t1"} {
		_ = o.ResumeTopic(t.Context(), topic, "a test") // most are not paused
	}
	pgtest.Await(t, "everything to be published", func() (bool, error) {
		w.release(t, o, 1)
		return pgtest.One[bool](t, w.db,
			`select not exists (select from outbox_event) and not exists (select from outbox_claim)
			and not exists (select from outbox_held) and not exists (select from outbox_parked) and not exists (select
				from outbox_parked_key)
			and not exists (select from outbox_scheduled)`), nil
	})
	for _, stop := range relays {
		stop()
	}
	w.check(t)
}

// awaitPart waits until part of the backlog is published.
func (w *randomRun) awaitPart(t *testing.T, most int) {
	t.Helper()
	pgtest.Await(t, "the backlog to shrink", func() (bool, error) {
		return pgtest.One[int](t, w.db, `select count(*) from outbox_event`) < most, nil
	})
}

// relay starts a relay. stop kills it: its claims stay open.
func (w *randomRun) relay(t *testing.T) (stop func()) {
	t.Helper()
	events := 320
	if w.bulk {
		events = 2 * relay.Lanes // so few that lanes have more events than a claim takes
	}
	r := newRelay(t, w.db, w.b, config(func(c *relay.Config) {
		c.Lease, c.HoldAfter, c.ClaimEvents, c.DrainTimeout, c.OnFailure = time.Second, 20*time.Millisecond, events, -1,
			w.park
		c.FloorEvery, c.RescanEvery, c.ArchiveDays = 1, 1, 30
		c.Observer.BelowFloor = func(lane int16) { t.Errorf("an event stood below the floor of lane %d", lane) }
		c.Observer.Held = func(_ string, _ int32, n int) { w.held.Add(int64(n)) }
		c.Observer.Drained = func(n int) { w.awaitDrained.Add(int64(n)) }
		c.Observer.Parked = func(n int) { w.parked.Add(int64(n)) }
		c.Observer.Behind = func(n int) { w.behind.Add(int64(n)) }
		c.Observer.Released = func(n int) { w.released.Add(int64(n)) }
	}))
	if w.bulk {
		relay.SetBulkFrom(r, 1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

func (w *randomRun) append(t *testing.T, n int) {
	t.Helper()
	var keys, topics, payloads []string
	for range n {
		key := "k" + strconv.Itoa(w.rnd.IntN(weekKeys))
		topic := "t" + strconv.Itoa(len(key)%2) // a key keeps its topic
		keys, topics, payloads = append(keys, key), append(topics, topic), append(payloads, strconv.Itoa(w.next[key]))
		w.next[key]++
	}
	w.db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select topic, key, 'T', convert_to(payload, 'UTF8')
		from unnest($1::text[], $2::text[], $3::text[]) with ordinality u (topic, key, payload, n)
		order by n`, topics, keys, payloads)
	// Without keys: their order is that of their due times.
	w.db.Exec(t, `insert into outbox_scheduled (due, topic, type, payload)
		select clock_timestamp() + $2 * interval '1 ms', 't0', 'T', convert_to(($1 + n)::text, 'UTF8')
		from generate_series(0, 4) n`, w.next[""], w.rnd.IntN(200))
	w.next[""] += 5
}

// lateWrites lets old abandoned requests arrive.
func (w *randomRun) lateWrites() {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	for _, request := range w.b.late {
		w.b.log = append(w.b.log, request...)
	}
	w.b.late = nil
}

func (w *randomRun) operate(t *testing.T, o *operator.Operator) {
	t.Helper()
	w.release(t, o, 2)
	for _, topic := range []string{"t0", "t1"} {
		_ = o.ResumeTopic(t.Context(), topic, "a test") // it may not be paused
	}
	if w.rnd.IntN(3) == 0 {
		if err := o.PauseTopic(t.Context(), "t"+strconv.Itoa(w.rnd.IntN(2)), "a test"); err != nil {
			t.Fatal(err)
		}
	}
	if w.rnd.IntN(4) > 0 {
		return
	}
	list, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Attempts > 0 && w.rnd.IntN(3) == 0 {
			if _, err := o.DiscardEvent(t.Context(), e.ID, "a test"); err == nil {
				w.discarded[e.MessageID] = true
			}
		}
	}
}

// release releases one in n parked keys or events.
func (w *randomRun) release(t *testing.T, o *operator.Operator, n int) {
	t.Helper()
	keys, err := o.BlockedKeys(t.Context(), admin.BlockedFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if !k.Releasing && w.rnd.IntN(n) == 0 {
			// The key may be gone by now.
			_, _ = o.ReleaseKey(t.Context(), k.Tenant, k.Topic, k.Key, admin.Seen{}, "a test")
		}
	}
	alone, err := o.Parked(t.Context(), admin.ParkedFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range alone {
		if e.Alone && !e.Releasing && w.rnd.IntN(n) == 0 {
			_ = o.ReleaseEvent(t.Context(), e.ID, "a test")
		}
	}
}

func (w *randomRun) check(t *testing.T) {
	t.Helper()
	log := w.b.events()
	next, seen, total := map[string]int{}, map[uuid.UUID]bool{}, 0
	gaps := map[string]map[int]bool{}
	for _, e := range log {
		if seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		n, _ := strconv.Atoi(string(e.Payload))
		if w.discarded[e.ID] {
			continue // it may be published once, late
		}
		if w.park == relay.ParkKey && e.Key != "" && n < next[e.Key] {
			t.Fatalf("key %s: %d first occurs after %d", e.Key, n, next[e.Key]-1)
		}
		for missing := next[e.Key]; missing < n; missing++ {
			if gaps[e.Key] == nil {
				gaps[e.Key] = map[int]bool{}
			}
			gaps[e.Key][missing] = true
		}
		delete(gaps[e.Key], n)
		next[e.Key] = max(next[e.Key], n+1)
	}
	missing := 0
	for key, n := range w.next {
		total += n
		missing += len(gaps[key]) + n - next[key]
	}
	never := 0
	for id := range w.discarded {
		if !seen[id] {
			never++
		}
	}
	if missing > len(w.discarded) || len(seen)+never != total {
		t.Errorf("%d events of %d are missing, %d were discarded, %d of them never sent", missing, total,
			len(w.discarded), never)
	}
	checkWatermarkExcept(t, log, w.discarded)
	if n := pgtest.One[int](t, w.db,
		`select count(distinct message_id) from outbox_archive where message_id = any ($1)`,
		slices.Collect(maps.Keys(seen))); n < total-len(w.discarded) {
		t.Errorf("%d of %d events are in the archive", n, total)
	}
	t.Logf("%d events, %d records, %d discarded; %d held, %d drained, %d parked, %d put behind them, %d released",
		total, len(log), len(w.discarded), w.held.Load(), w.awaitDrained.Load(), w.parked.Load(), w.behind.Load(),
		w.released.Load())
}
