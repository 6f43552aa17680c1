package endtoend

import (
	"context"
	"fmt"
	"log/slog"
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
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// walTestbed is an outbox whose relays read the WAL, with continuous writers and a worker that deduplicates by
// watermark.
type walTestbed struct {
	*outboxTestbed
	slot    string
	writers sync.WaitGroup
	stop    chan struct{}
	mu      sync.Mutex
	events  int
}

const walConsumer = "ledger"

func newWALTestbed(t *testing.T, partitions int) *walTestbed {
	t.Helper()
	kafkatest.RequireReal(t)
	s := &walTestbed{outboxTestbed: newOutboxTestbed(t, partitions), stop: make(chan struct{})}
	var err error
	if s.slot, err = operator.SetUpWAL(t.Context(), s.db.Pool, s.db.Schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pgtest.Await(t, "the drop of the slot", func() (bool, error) {
			_, err := operator.DropWAL(context.Background(), s.db.Pool, s.db.Schema)
			return err == nil, nil
		})
	})
	return s
}

// follow runs a relay until the test ends, or until stop is called.
func (s *walTestbed) follow(t *testing.T, db *pgxpool.Pool, feed relay.Feed) (stop func()) {
	t.Helper()
	return s.relayFrom(t, db, s.kafka(t), 0, feed)
}

// write commits events, numbered within their key, until end.
func (s *walTestbed) write(t *testing.T, writers int) {
	t.Helper()
	for w := range writers {
		s.writers.Go(func() {
			next := map[string]int{}
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-s.stop:
					return
				case <-tick.C:
				}
				var keys []string
				var numbers []int
				for j := range 1 + i%4 {
					key := fmt.Sprintf("w%d-%d", w, (i+j)%8)
					keys, numbers = append(keys, key), append(numbers, next[key])
					next[key]++
				}
				_, err := s.db.Pool.Exec(t.Context(), `insert into outbox_event (topic, key, type, payload)
					select $1, k, 'T', convert_to(n::text, 'UTF8') from unnest($2::text[], $3::int[]) v (k,
						n)`, s.topic, keys, numbers)
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				s.mu.Lock()
				s.events += len(keys)
				s.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() { s.end() })
}

// end stops the writers and returns how many events they have committed.
func (s *walTestbed) end() int {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	s.writers.Wait()
	return s.events
}

// work runs a worker that deduplicates by watermark until the test ends.
func (s *walTestbed) work(t *testing.T) {
	t.Helper()
	c, err := consumer.New(s.inbox(t, walConsumer, inbox.ByWatermark), kafkatest.Brokers(t), []string{s.topic},
		consumer.Config{Batch: 50, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

// awaitEffects waits for n more effects than there are events now, so that the current relay must have published them.
func (s *walTestbed) awaitEffects(t *testing.T, n int) {
	t.Helper()
	s.mu.Lock()
	before := s.events
	s.mu.Unlock()
	pgtest.AwaitSQL(t, s.db, `select count(distinct id) > $1 from effect`, before+n)
}

func (s *walTestbed) streaming(t *testing.T) {
	t.Helper()
	pgtest.AwaitSQL(t, s.db, `select count(*) = 32 from outbox_streamed`)
}

func (s *walTestbed) incarnation(t *testing.T) int {
	t.Helper()
	return pgtest.One[int](t, s.db, `select incarnation from outbox_meta`)
}

// checkOrder checks the order of the first effects of each key's events, and returns how many repeats of events have
// another numbering.
func (s *walTestbed) checkOrder(t *testing.T, events int) (renumbered int) {
	t.Helper()
	of, epochs := map[uuid.UUID]event.Event{}, map[string]bool{}
	for _, e := range s.log(t) {
		if name := e.ID.String() + e.Position.Epoch; !epochs[name] {
			epochs[name] = true
			renumbered++
		}
		of[e.ID] = e
	}
	if len(of) != events {
		t.Errorf("the log has %d of %d events", len(of), events)
	}
	rows, err := s.db.Pool.Query(t.Context(), `select id from effect group by id order by min(n)`)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		t.Fatal(err)
	}
	next := map[string]int{}
	for _, id := range ids {
		e := of[id]
		if got := string(e.Payload); got != fmt.Sprint(next[e.Key]) {
			t.Fatalf("key %s: effect of event %s, want %d", e.Key, got, next[e.Key])
		}
		next[e.Key]++
	}
	return renumbered - len(of)
}

// TestP9_8_WALTakeOvers: relays that read the WAL die, and others take over, one of which polls, while writers
// continue. A worker that deduplicates by watermark never stops, and applies each event once, in order.
func TestP9_8_WALTakeOvers(t *testing.T) {
	t.Parallel()
	s := newWALTestbed(t, 3)
	s.write(t, 3)
	s.work(t)
	var dead []func()
	for range 2 {
		proxy := pgtest.NewProxy(t, s.db.URL)
		far, err := pgxpool.New(t.Context(), proxy.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		dead = append(dead, s.follow(t, far, relay.FeedWAL))
		s.streaming(t)
		s.awaitEffects(t, 300)
		proxy.Refuse(true)
		proxy.CutAll() // while it publishes
	}
	stop := s.follow(t, s.db.Pool, relay.FeedWAL)
	s.awaitEffects(t, 300)
	s.streaming(t)
	stop()
	stop = s.follow(t, s.db.Pool, relay.FeedTable)
	s.awaitEffects(t, 300)
	stop()
	s.follow(t, s.db.Pool, relay.FeedWAL)
	s.streaming(t)
	s.awaitEffects(t, 300)
	events := s.end()
	pgtest.AwaitSQL(t, s.db, `select count(distinct id) >= $1 from effect`, events)
	if rows, once := s.effects(t); rows != events || once != events {
		t.Errorf("%d effects of %d events, want %d", rows, once, events)
	}
	if n := s.incarnation(t); n != 1 {
		t.Errorf("incarnation %d, want 1: every relay continued where the last one ended", n)
	}
	if again := s.checkOrder(t, events); again != 0 {
		t.Errorf("%d events have two numberings", again)
	}
	for _, stop := range dead {
		stop()
	}
}

// TestP9_8_WALSlotLost: the slot is dropped under load; the relay falls back to the table and returns to a new slot.
// The worker halts where the new numbering begins, without a second effect. After an operator accepted the numbering no
// event is missing, and only events with two numberings in the topic have two effects.
func TestP9_8_WALSlotLost(t *testing.T) {
	t.Parallel()
	s := newWALTestbed(t, 3)
	s.write(t, 3)
	s.work(t)
	s.follow(t, s.db.Pool, relay.FeedWAL)
	s.streaming(t)
	s.awaitEffects(t, 300)
	pgtest.Await(t, "the loss of the slot", func() (bool, error) {
		if _, err := s.db.Pool.Exec(t.Context(),
			`select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1
				and active_pid is not null`, s.slot); err != nil {
			return false, err
		}
		_, err := s.db.Pool.Exec(t.Context(),
			`select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1`, s.slot)
		return err == nil, nil
	})
	pgtest.AwaitSQL(t, s.db, `select incarnation > 1 from outbox_meta`)
	s.streaming(t)
	pgtest.AwaitSQL(t, s.db, `select count(*) = 3 from inbox_progress where halted_at is not null`)
	if rows, once := s.effects(t); rows != once {
		t.Errorf("%d effects of %d events before the new numbering was accepted", rows, once)
	}
	mine, err := inboxoperator.New(s.db.Pool, s.db.Schema, walConsumer, "ada")
	if err != nil {
		t.Fatal(err)
	}
	epoch := pgtest.One[string](t, s.db, `select outbox_id || '.' || incarnation from outbox_meta`)
	if _, err := mine.AcceptNumbering(t.Context(), epoch, "a test"); err != nil {
		t.Fatal(err)
	}
	s.awaitEffects(t, 300)
	events := s.end()
	pgtest.AwaitSQL(t, s.db, `select count(distinct id) >= $1 from effect`, events)
	again := s.checkOrder(t, events)
	if rows, once := s.effects(t); rows-once > again || once != events {
		t.Errorf("%d effects of %d events, %d of them with two numberings; want %d events", rows, once,
			again, events)
	}
	t.Logf("%d events, %d of them with two numberings", events, again)
}
