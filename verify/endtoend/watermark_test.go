package endtoend

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// outboxTestbed is an outbox, a topic, and a table of effects.
type outboxTestbed struct {
	db    *pgtest.DB
	topic string
}

func newOutboxTestbed(t *testing.T, partitions int) *outboxTestbed {
	t.Helper()
	s := &outboxTestbed{pgtest.New(t, migrations.Outbox, migrations.Inbox), kafkatest.Topic(t, partitions)}
	s.db.Exec(t, `create table effect (id uuid not null, n bigint generated always as identity)`)
	return s
}

// append commits n events over some keys.
func (s *outboxTestbed) append(t *testing.T, n, keys int) {
	t.Helper()
	s.db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select $1, 'k' || g % $3, 'T', '{}'
			from generate_series(1, $2) g`, s.topic, n, keys)
}

// kafka returns a publisher as the relay binary creates it.
func (s *outboxTestbed) kafka(t *testing.T) *publisher.Kafka {
	t.Helper()
	box, err := relay.Open(s.db.Pool, s.db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	to, err := publisher.NewKafka(kafkatest.Brokers(t),
		publisher.Config{Pin: box.Pin, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = to.Close() })
	return to
}

// relay runs a relay until the test ends, or until stop is called.
func (s *outboxTestbed) relay(t *testing.T, db *pgxpool.Pool, to relay.Publisher, archive int) (stop func()) {
	t.Helper()
	return s.relayFrom(t, db, to, archive, relay.FeedTable)
}

// relayFrom is relay with a source.
func (s *outboxTestbed) relayFrom(t *testing.T, db *pgxpool.Pool, to relay.Publisher, archive int,
	feed relay.Feed,
) (stop func()) {
	t.Helper()
	r, err := relay.New(db, to, relay.Config{
		Schema: s.db.Schema, Lease: 3 * time.Second, ArchiveDays: archive, ProbeAwake: 5 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler), Feed: feed, WALHeartbeat: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Logf("the relay ended with: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func (s *outboxTestbed) drained(t *testing.T) {
	t.Helper()
	pgtest.AwaitSQL(t, s.db, `select (select count(*) from outbox_event) + (select count(*) from outbox_claim) = 0`)
}

// log returns the events in the topic, as a consumer decodes them.
func (s *outboxTestbed) log(t *testing.T) (log []event.Event) {
	t.Helper()
	for _, r := range kafkatest.ReadAll(t, s.topic) {
		rec := event.Record{
			Topic: s.topic, Partition: r.Partition, Offset: r.Offset, Time: r.Time, Key: r.Key,
			Value: r.Value,
		}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, event.Header(h))
		}
		log = append(log, event.Decode(&rec, ""))
	}
	return log
}

// dropRepeats removes events that a relay published again under the same number, as it does after a late reply.
func dropRepeats(log []event.Event) []event.Event {
	type number struct {
		epoch string
		lane  int16
		seq   int64
	}
	seen := map[number]bool{}
	return slices.DeleteFunc(log, func(e event.Event) bool {
		n := number{e.Position.Epoch, e.Position.Lane, e.Position.Seq}
		again := seen[n]
		seen[n] = true
		return again
	})
}

func (s *outboxTestbed) inbox(t *testing.T, name string, dedup inbox.Dedup) inbox.Handler {
	t.Helper()
	in, err := inbox.New(s.db.Pool, name, inbox.Config{
		Schema: s.db.Schema, Dedup: dedup, OnFailure: inbox.ParkEvent,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		ids := make([]string, len(events))
		for i, e := range events {
			ids[i] = e.ID.String()
		}
		_, err := tx.Exec(ctx, `insert into effect (id) select unnest($1::text[])::uuid`, ids)
		return err
	})
}

// consume runs a worker until the group has committed the whole topic.
func (s *outboxTestbed) consume(t *testing.T, h inbox.Handler, partitions int) {
	t.Helper()
	c, err := consumer.New(h, kafkatest.Brokers(t), []string{s.topic},
		consumer.Config{Start: consumer.StartEarliest, Batch: 50, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	whileRunning(t, c, func() {
		pgtest.Await(t, "the topic is read", func() (bool, error) {
			list := c.Status().Partitions
			for _, p := range list {
				if p.Lag != 0 {
					return false, nil
				}
			}
			return len(list) == partitions, nil
		})
	})
}

// effects counts the effects, and the events that have one.
func (s *outboxTestbed) effects(t *testing.T) (all, events int) {
	t.Helper()
	return pgtest.One[int](t, s.db, `select count(*) from effect`),
		pgtest.One[int](t, s.db, `select count(distinct id) from effect`)
}

// dying is a publisher whose relay loses the database as soon as its first claim is in Kafka.
type dying struct {
	relay.Publisher
	sent chan struct{}
	die  func()
	once sync.Once
}

func (d *dying) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := d.Publisher.Publish(ctx, events)
	d.once.Do(func() { d.die(); close(d.sent) })
	return verdicts
}

// killedBetweenPublishAndSettle fills the topic with events, some of them twice: a relay publishes a claim and loses
// its database before the settle, and another relay takes over.
func killedBetweenPublishAndSettle(t *testing.T, s *outboxTestbed, n int) {
	t.Helper()
	s.append(t, n, 40)
	proxy := pgtest.NewProxy(t, s.db.URL)
	far, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	first := &dying{
		Publisher: s.kafka(t), sent: make(chan struct{}),
		die: func() { proxy.Refuse(true); proxy.CutAll() },
	}
	stop := s.relay(t, far, first, 0)
	<-first.sent
	s.relay(t, s.db.Pool, s.kafka(t), 0)
	s.drained(t)
	stop()
	s.append(t, n/4, 40)
	s.drained(t)
}

// TestP9_8_TakeOver: events that a relay published but did not settle are published again under the same numbers, and a
// watermark over the numbers applies them once, without a row per event. A watermark over offsets applies them twice.
func TestP9_8_TakeOver(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	const n, all, partitions = 2000, 2500, 3
	s := newOutboxTestbed(t, partitions)
	killedBetweenPublishAndSettle(t, s, n)
	log := s.log(t)
	numbers := map[uuid.UUID]event.Position{}
	repeats := 0
	for _, e := range log {
		p, seen := numbers[e.ID]
		if seen {
			repeats++
		}
		if seen && (p.Lane != e.Position.Lane || p.Seq != e.Position.Seq || p.Epoch != e.Position.Epoch ||
			p.Partition != e.Position.Partition) {
			t.Fatalf("event %s is in the log as %+v and as %+v", e.ID, p, e.Position)
		}
		numbers[e.ID] = e.Position
	}
	if repeats == 0 || len(numbers) != all {
		t.Fatalf("%d repeats of %d events: the test needs some", repeats, len(numbers))
	}
	s.consume(t, s.inbox(t, "by-watermark", inbox.ByWatermark), partitions)
	if rows, events := s.effects(t); rows != all || events != all {
		t.Errorf("%d effects of %d events, want %d", rows, events, all)
	}
	if rows := pgtest.One[int](t, s.db,
		`select (select count(*) from inbox_message) + (select count(*) from inbox_message_any) + (select count(*)
				from inbox_parked)`); rows != 0 {
		t.Errorf("the inbox has %d rows of events, want none", rows)
	}

	// The same events, with offsets only.
	s.db.Exec(t, `truncate effect`)
	wrong := s.inbox(t, "by-offset", inbox.ByOffset)
	of := map[int32][]event.Event{}
	for _, e := range log {
		e.Position = event.Position{Partition: e.Position.Partition, Offset: e.Position.Offset}
		of[e.Position.Partition] = append(of[e.Position.Partition], e)
	}
	for _, events := range of {
		for batch := range slices.Chunk(events, 100) {
			if _, err := wrong.Handle(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rows, events := s.effects(t); rows != all+repeats || events != all {
		t.Errorf("by the offset: %d effects of %d events: want the %d repeats applied again", rows, events, repeats)
	}
}

// TestP9_8_TakeOverFromTheWAL: the same with relays that read the WAL and need no journal: events that the first one
// published but did not delete are read again, under the same numbers.
func TestP9_8_TakeOverFromTheWAL(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	const n, partitions = 2000, 3
	s := newOutboxTestbed(t, partitions)
	if _, err := operator.SetUpWAL(t.Context(), s.db.Pool, s.db.Schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pgtest.Await(t, "nobody reads the slot", func() (bool, error) {
			_, err := operator.DropWAL(context.Background(), s.db.Pool, s.db.Schema)
			return err == nil, nil
		})
	})
	proxy := pgtest.NewProxy(t, s.db.URL)
	far, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	first := &dying{
		Publisher: s.kafka(t), sent: make(chan struct{}),
		die: func() { proxy.Refuse(true); proxy.CutAll() },
	}
	stop := s.relayFrom(t, far, first, 0, relay.FeedWAL)
	pgtest.AwaitSQL(t, s.db, `select count(*) = 32 from outbox_streamed`)
	s.append(t, n, 40)
	<-first.sent
	s.relayFrom(t, s.db.Pool, s.kafka(t), 0, relay.FeedWAL)
	s.drained(t)
	stop()
	numbers := map[uuid.UUID]event.Position{}
	repeats := 0
	for _, e := range s.log(t) {
		p, seen := numbers[e.ID]
		if seen {
			repeats++
		}
		if e.Position.Lane != -1 || seen && (p.Seq != e.Position.Seq || p.Epoch != e.Position.Epoch ||
			p.Partition != e.Position.Partition) {
			t.Fatalf("event %s is in the log as %+v and as %+v", e.ID, p, e.Position)
		}
		numbers[e.ID] = e.Position
	}
	if repeats == 0 || len(numbers) != n {
		t.Fatalf("%d repeats of %d events: the test needs some", repeats, len(numbers))
	}
	s.consume(t, s.inbox(t, "by-watermark", inbox.ByWatermark), partitions)
	if rows, events := s.effects(t); rows != n || events != n {
		t.Errorf("%d effects of %d events, want %d", rows, events, n)
	}
}

// TestP9_8_OutboxIDIsNoNumber: ids are assigned before the commit, so an event with a lower id may be published later.
// A watermark over ids would drop it; numbers are assigned in the order of publishing.
func TestP9_8_OutboxIDIsNoNumber(t *testing.T) {
	t.Parallel()
	s := newOutboxTestbed(t, 1)
	slow, err := s.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Rollback(context.Background()) }()
	insert := `insert into outbox_event (topic, key, type, payload) values ($1, 'k', 'T', '{}')
		returning id, message_id`
	ids := map[uuid.UUID]int64{}
	add := func(row pgx.Row) {
		t.Helper()
		var id int64
		var message uuid.UUID
		if err := row.Scan(&id, &message); err != nil {
			t.Fatal(err)
		}
		ids[message] = id
	}
	add(slow.QueryRow(t.Context(), insert, s.topic))
	s.relay(t, s.db.Pool, s.kafka(t), 0)
	add(s.db.Pool.QueryRow(t.Context(), insert, s.topic))
	pgtest.Await(t, "the second is published", func() (bool, error) {
		return len(dropRepeats(s.log(t))) == 1, nil
	})
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.drained(t)
	log := dropRepeats(s.log(t))
	if len(log) != 2 || ids[log[0].ID] < ids[log[1].ID] {
		t.Fatalf("the log has %d events, with ids %v", len(log), ids)
	}
	outcomes := func(name string, log []event.Event) []inbox.Outcome {
		t.Helper()
		out, err := s.inbox(t, name, inbox.ByWatermark).Handle(t.Context(), log)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := outcomes("by-number", log); out[0] != inbox.Applied || out[1] != inbox.Applied {
		t.Errorf("by the numbers: %v", out)
	}
	for i := range log {
		log[i].Position.Seq = ids[log[i].ID]
	}
	if out := outcomes("by-id-of-the-outbox", log); out[0] != inbox.Applied || out[1] != inbox.Duplicate {
		t.Errorf("by the ids: %v, want the second event dropped", out)
	}
}

// TestP9_8_Fence: after a fence the relay uses new numbers. The worker halts there, without a second effect, and
// continues, without a lost event, once the new numbering is accepted.
func TestP9_8_Fence(t *testing.T) {
	t.Parallel()
	s := newOutboxTestbed(t, 1)
	s.append(t, 100, 10)
	stop := s.relay(t, s.db.Pool, s.kafka(t), 0)
	s.drained(t)
	stop()
	h := s.inbox(t, "ledger", inbox.ByWatermark)
	if _, err := h.Handle(t.Context(), dropRepeats(s.log(t))); err != nil {
		t.Fatal(err)
	}
	o, err := operator.New(s.db.Pool, s.db.Schema, "ada")
	if err != nil {
		t.Fatal(err)
	}
	fenced, err := o.Fence(t.Context(), "restored")
	if err != nil {
		t.Fatal(err)
	}
	s.append(t, 100, 10)
	s.relay(t, s.db.Pool, s.kafka(t), 0)
	s.drained(t)
	log := dropRepeats(s.log(t))
	out, err := h.Handle(t.Context(), log)
	if _, code := outcome.Of(err); code != inbox.CodeNewNumbering || out[99] != inbox.Duplicate ||
		out[100] != inbox.Undecided {
		t.Fatalf("%q, %v: %v", code, out, err)
	}
	if rows, events := s.effects(t); rows != 100 || events != 100 {
		t.Errorf("%d effects of %d events, want 100", rows, events)
	}
	mine, err := inboxoperator.New(s.db.Pool, s.db.Schema, "ledger", "ada")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := mine.AcceptNumbering(t.Context(), fenced.Epoch, "nothing came again"); err != nil || n != 1 {
		t.Fatalf("%d partitions: %v", n, err)
	}
	if _, err := h.Handle(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	if rows, events := s.effects(t); rows != 200 || events != 200 {
		t.Errorf("%d effects of %d events, want 200", rows, events)
	}
}

// TestP9_8_Replay: replayed events have their old ids, new numbers and a mark: by watermark they are quarantined, by id
// they are duplicates.
func TestP9_8_Replay(t *testing.T) {
	t.Parallel()
	s := newOutboxTestbed(t, 1)
	start := time.Now().Add(-time.Hour)
	s.append(t, 20, 4)
	s.relay(t, s.db.Pool, s.kafka(t), 1)
	s.drained(t)
	byNumber, byID := s.inbox(t, "by-number", inbox.ByWatermark), s.inbox(t, "by-id", inbox.ByID)
	both := func(log []event.Event, number, id inbox.Outcome) {
		t.Helper()
		for h, want := range map[inbox.Handler]inbox.Outcome{byNumber: number, byID: id} {
			out, err := h.Handle(t.Context(), log)
			if err != nil {
				t.Fatal(err)
			}
			for i := range out {
				if out[i] != want {
					t.Fatalf("event %d is %v, want %v", i, out[i], want)
				}
			}
		}
	}
	both(dropRepeats(s.log(t)), inbox.Applied, inbox.Applied)
	o, err := operator.New(s.db.Pool, s.db.Schema, "ada")
	if err != nil {
		t.Fatal(err)
	}
	if done, err := o.Replay(t.Context(), operator.Replay{From: start, Topic: s.topic},
		"as the test wants it"); err != nil || done.Events != 20 {
		t.Fatalf("%+v: %v", done, err)
	}
	s.drained(t)
	log := dropRepeats(s.log(t))
	if len(log) != 40 {
		t.Fatalf("the log has %d events", len(log))
	}
	both(log[20:], inbox.Quarantined, inbox.Duplicate)
	if rows, events := s.effects(t); rows != 40 || events != 20 {
		t.Errorf("%d effects of %d events, want those of two consumers", rows, events)
	}
}
