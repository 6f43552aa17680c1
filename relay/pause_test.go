package relay_test

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// fillTopic appends n events of each of 20 keys of a topic; the payloads of a key count up from a number.
func fillTopic(t *testing.T, db *pgtest.DB, topic string, from, n int) {
	t.Helper()
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select $3::text, $3 || k, 'T', convert_to(i::text, 'UTF8')
		from generate_series($1::int, $1::int + $2::int - 1) i, generate_series(1, 20) k order by i`, from, n, topic)
}

func topicOf(log []event.Event, topic string) (of []event.Event) {
	for _, e := range log {
		if e.Topic == topic {
			of = append(of, e)
		}
	}
	return of
}

const nothingLeft = `select not exists (select from outbox_event) and not exists (select from outbox_claim)
	and not exists (select from outbox_held)`

// TestP4PauseHoldsOnlyItsTopic: the events of a paused topic are held, also over a restart of the relay, and published
// in order when it is resumed.
func TestP4PauseHoldsOnlyItsTopic(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	o := newOperator(t, db)
	fillTopic(t, db, "slow", 0, 50)
	fillTopic(t, db, "fast", 0, 50)
	if err := o.PauseTopic(t.Context(), "slow", "its consumer is being repaired"); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		stop := startRelay(t, newRelay(t, db, to, config()))
		awaitDrained(t, db)
		fillTopic(t, db, "slow", 50+25*round, 25)
		fillTopic(t, db, "fast", 50+25*round, 25)
		awaitDrained(t, db)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	checkOrder(t, topicOf(to.events(), "fast"), 2000)
	if n := len(topicOf(to.events(), "slow")); n != 0 {
		t.Fatalf("%d events of the paused topic were published", n)
	}
	if got := pgtest.One[string](t, db,
		`select count(*) || ' ' || min(topic) || ' ' || max(partition) || ' ' || bool_or(sent) from outbox_held`); got != "2000 slow -1 false" {
		t.Errorf("held: %s", got)
	}
	stop := startRelay(t, newRelay(t, db, to, config()))
	if err := o.ResumeTopic(t.Context(), "slow", "it is repaired"); err != nil {
		t.Fatal(err)
	}
	fillTopic(t, db, "slow", 100, 25)
	pgtest.AwaitSQL(t, db, nothingLeft)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkNumbers(t, topicOf(to.events(), "slow")) // held events keep their numbers
	if dup := checkOrder(t, topicOf(to.events(), "slow"), 2500); dup != 0 {
		t.Errorf("%d duplicates", dup)
	}
}

// TestP4PausedWithinAClaim: a topic is paused after a claim has begun, and then an event of it is committed, which the
// claim still takes. It is held.
func TestP4PausedWithinAClaim(t *testing.T) {
	t.Parallel()
	for name, bulkFrom := range map[string]int{"one by one": 1 << 30, "in bulk": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, r := drivenInBulk(t, outboxDB(t))
			relay.SetBulkFrom(r, bulkFrom)
			fillTopic(t, f.db, "fast", 0, 200)
			f.step()
			f.step()
			producer := f.begin(f.db, `lock table outbox_event`)
			stepped := make(chan error, 1)
			go func() {
				_, err := f.Step(t.Context())
				stepped <- err
			}()
			pgtest.AwaitBlocking(t, f.db, producer.PgConn().PID())
			f.must(newOperator(t, f.db).PauseTopic(t.Context(), "slow", "a drill"))
			f.exec(producer, `insert into outbox_event (topic, key, type, payload)
				select 'slow', k::text, 'T', '' from generate_series(1, 20) k`)
			f.exec(producer, `commit`)
			f.must(<-stepped)
			f.steps(r)
			if n := len(topicOf(f.to.events(), "slow")); n != 0 {
				t.Errorf("%d events that were committed after the pause are published", n)
			}
			if n := pgtest.One[int](t, f.db, `select count(*) from outbox_held where topic = 'slow'`); n != 20 {
				t.Errorf("%d events are held, want 20", n)
			}
		})
	}
}

// messages is a slog.Handler that sends the messages to a channel.
type messages chan string

func (m messages) Enabled(context.Context, slog.Level) bool { return true }
func (m messages) WithAttrs([]slog.Attr) slog.Handler       { return m }
func (m messages) WithGroup(string) slog.Handler            { return m }

func (m messages) Handle(_ context.Context, r slog.Record) error {
	m <- r.Message
	return nil
}

// TestP4ResumedWhileBeingHeld: a topic is resumed while a settle is about to hold its events. They are published
// although no event follows them.
func TestP4ResumedWhileBeingHeld(t *testing.T) {
	t.Parallel()
	db, to, logged := outboxDB(t), &memory{}, make(messages, 1000)
	o := newOperator(t, db)
	startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.Logger = slog.New(logged) })))
	fillTopic(t, db, "slow", 0, 1)
	awaitDrained(t, db)
	if err := o.PauseTopic(t.Context(), "slow", "its consumer is being repaired"); err != nil {
		t.Fatal(err)
	}
	noSettles, err := db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := noSettles.Exec(t.Context(), `lock table outbox_held in share mode`); err != nil {
		t.Fatal(err)
	}
	fillTopic(t, db, "slow", 1, 1)
	pgtest.AwaitSQL(t, db,
		`select exists (select from pg_locks where relation = 'outbox_held'::regclass and not granted
			and database = (select oid from pg_database where datname = current_database()))`)
	if err := o.ResumeTopic(t.Context(), "slow", "it is repaired"); err != nil {
		t.Fatal(err)
	}
	for said := ""; said != "a topic was resumed by an operator"; {
		said = <-logged
	}
	if err := noSettles.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, nothingLeft)
	checkOrder(t, to.events(), 40)
}

// TestP4PauseCostsOtherTopicsNothing: 20,000 events of a paused topic leave the outbox once; after that, claims and
// probes for other topics do not read them.
func TestP4PauseCostsOtherTopicsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("fills tables")
	}
	t.Parallel()
	f := driven(t, outboxDB(t), func(c *relay.Config) { c.ClaimEvents = 20_000 })
	f.must(newOperator(t, f.db).PauseTopic(t.Context(), "slow", "a drill"))
	fillTopic(t, f.db, "slow", 0, 1000)
	for range 40 { // a claim that holds all its events publishes none
		_, err := f.Step(t.Context())
		f.must(err)
		if pgtest.One[int](t, f.db, `select count(*) from outbox_held`) == 20_000 {
			break
		}
	}
	f.riseFully()
	lanes, floors, ids := f.Floors()
	owner := pgtest.One[string](t, f.db, `select min(owner::text) from outbox_lane`)
	upperBounds := slices.Repeat([]int64{math.MaxInt64}, len(lanes))
	claim := f.pages("takeMarked", lanes, f.Fences(lanes), owner, make([]int64, len(lanes)), 250, 1<<20, 512, 1<<20,
		floors, ids, make([]bool, len(lanes)), upperBounds)
	groups := f.pages("lookHeld", lanes, f.Fences(lanes), owner)
	look := f.pages("probe", lanes, "3 s", floors, ids, lanes)
	if claim > 500 || groups > 500 || look > 200 || f.to.count() > 0 {
		t.Errorf("with 20,000 held events a claim reads %d and %d pages, a probe %d; %d were published", claim, groups,
			look, f.to.count())
	}
	t.Logf("a claim reads %d and %d pages, a probe %d", claim, groups, look)
}

// TestP4PauseOfRefusedTopic: a paused topic is not tried before it is resumed, not even by a relay that does not know
// of the pause yet.
func TestP4PauseOfRefusedTopic(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	o := newOperator(t, db)
	held, pausing, tries, open := atomic.Bool{}, sync.Once{}, atomic.Int32{}, make(chan struct{})
	paused := make(chan error, 1)
	to.verdict = func(_ int, e event.Event) error {
		if e.Topic != "slow" {
			return nil
		}
		select {
		case <-open:
			return nil
		default:
		}
		tries.Add(1)
		if held.Load() { // within a try: the next one begins after the pause
			pausing.Do(func() {
				paused <- o.PauseTopic(t.Context(), "slow", "we know")
				tries.Store(0)
			})
		}
		return refusedTopic
	}
	fillTopic(t, db, "slow", 0, 5)
	stop := startRelay(t, newRelay(t, db, to, config()))
	pgtest.AwaitSQL(t, db, `select count(*) = 100 from outbox_held`)
	awaitDrained(t, db)
	held.Store(true)
	if err := <-paused; err != nil {
		t.Fatal(err)
	}
	for range 6 {
		fillTopic(t, db, "fast", 0, 1)
		awaitDrained(t, db)
	}
	if n := tries.Load(); n > 0 {
		t.Errorf("a paused topic was tried %d times", n)
	}
	close(open)
	if err := o.ResumeTopic(t.Context(), "slow", "mended"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, nothingLeft)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, topicOf(to.events(), "slow"), 100)
}

// TestP4PausedBeforeTry: a topic is paused after a relay has chosen it for a try. Nothing is sent, the topic stays
// closed, and its events do not count as sent.
func TestP4PausedBeforeTry(t *testing.T) {
	t.Parallel()
	reopened := 0
	f := driven(t, outboxDB(t), func(c *relay.Config) {
		c.Observer.Reopened = func(string, int32, time.Duration) { reopened++ }
	})
	f.to.verdict = func(int, event.Event) error { return refusedTopic }
	f.append()
	f.step()
	calls := f.to.calls
	f.must(newOperator(t, f.db).PauseTopic(t.Context(), "payments", "a drill"))
	f.must(f.Try(t.Context(), "payments"))
	if f.to.calls != calls || reopened != 0 {
		t.Errorf("a paused topic was tried %d times, and opened %d times", f.to.calls-calls, reopened)
	}
	if n := pgtest.One[int](t, f.db, `select count(*) from outbox_held where sent`); n != 0 {
		t.Errorf("%d events that were not sent count as sent", n)
	}
	f.must(newOperator(t, f.db).ResumeTopic(t.Context(), "payments", "the drill is over"))
	f.to.verdict = nil
	f.must(f.Try(t.Context(), "payments"))
	if n := f.to.count(); n != 1 || reopened != 1 {
		t.Errorf("after the resume a try sent %d events, and the topic was opened %d times", n, reopened)
	}
}

// TestArchiveKeepsWhatWasPublished: both kinds of settle archive events with their numbers, and a replay restores them.
func TestArchiveKeepsWhatWasPublished(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	o := newOperator(t, db)
	if err := o.PauseTopic(t.Context(), "slow", "so that some are held first"); err != nil {
		t.Fatal(err)
	}
	fillTopic(t, db, "slow", 0, 20)
	fillTopic(t, db, "fast", 0, 20)
	start := pgtest.One[time.Time](t, db, `select clock_timestamp()`)
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.ArchiveDays = 30 })))
	awaitDrained(t, db)
	if err := o.ResumeTopic(t.Context(), "slow", "go"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, nothingLeft)
	first := to.events()
	for _, e := range first {
		p := e.Position
		if !pgtest.One[bool](t, db,
			`select count(*) = 1 from outbox_archive where message_id = $1 and epoch = $2 and lane = $3 and seq = $4
			and topic = $5 and key = $6 and payload = $7 and published_at >= $8`, e.ID, p.Epoch, p.Lane, p.Seq, e.Topic,
			e.Key, e.Payload, start) {
			t.Fatalf("the archive lacks event %+v", e)
		}
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_archive`); n != 800 {
		t.Errorf("%d events in the archive, want 800", n)
	}
	if n := pgtest.One[int](t, db, `select count(*) from only outbox_archive_default`); n > 0 {
		t.Logf("%d events were settled before their day had a partition", n)
	}
	done, err := o.Replay(t.Context(), operator.Replay{
		From: pgtest.One[time.Time](t, db, `select min(published_at) from outbox_archive`), Topic: "slow",
	}, "a drill")
	if err != nil || done.Events != 400 {
		t.Errorf("%+v, %v", done, err)
	}
	pgtest.AwaitSQL(t, db, nothingLeft)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, topicOf(to.events()[len(first):], "slow"), 400)
	if n := pgtest.One[int](t, db, `select count(distinct message_id) from outbox_archive`); n != 800 {
		t.Errorf("the replay made new ids: %d", n)
	}
}

// TestP4ClaimUsesItsOwnReadOfPauses: pumps and the prober read outbox_paused_topic at different times. A claim that has
// read a pause does not send the topic's events when a probe from before the pause reports later.
func TestP4ClaimUsesItsOwnReadOfPauses(t *testing.T) {
	t.Parallel()
	var f *floors
	f = driven(t, outboxDB(t), func(c *relay.Config) {
		c.Observer.Claimed = func(int, int, time.Duration) { relay.Unpause(f.Relay()) }
	})
	f.must(newOperator(t, f.db).PauseTopic(t.Context(), "payments", "a drill"))
	f.db.Exec(t, insertOne)
	n, err := f.Step(t.Context())
	f.must(err)
	if held := pgtest.One[int](t, f.db,
		`select count(*) from outbox_held where topic = 'payments' and partition = -1 and not sent`); n != 0 ||
		held != 1 {
		t.Errorf("%d events of a paused topic were sent, %d are held", n, held)
	}
}
