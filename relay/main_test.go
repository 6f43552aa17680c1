package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

// memory is a publisher that keeps the events that it acks. verdict, if set, decides; nil acks.
type memory struct {
	mu      sync.Mutex
	log     []event.Event
	calls   int
	verdict func(call int, e event.Event) error
	entered chan []event.Event // if set, every call sends its events here and then waits for gate
	gate    chan struct{}
}

func (m *memory) Publish(ctx context.Context, events []event.Event) []error {
	if m.entered != nil {
		select {
		case m.entered <- append([]event.Event(nil), events...):
		case <-ctx.Done():
			return unknown(len(events), ctx.Err())
		}
		select {
		case <-m.gate:
		case <-ctx.Done():
			return unknown(len(events), ctx.Err())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	verdicts := make([]error, len(events))
	failed := map[string]bool{} // this publisher's partitions are the keys
	for i, e := range events {
		if failed[e.Key] {
			verdicts[i] = errors.New("not sent")
			continue
		}
		if m.verdict != nil {
			verdicts[i] = m.verdict(m.calls, e)
		}
		if verdicts[i] != nil {
			failed[e.Key] = true
			continue
		}
		m.log = append(m.log, e)
	}
	return verdicts
}

func unknown(n int, err error) []error {
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

func (m *memory) events() []event.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]event.Event(nil), m.log...)
}

func (m *memory) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.log)
}

var (
	refusedEvent = &outcome.Refusal{Err: errors.New("refused: too large")}
	refusedTopic = &outcome.Refusal{Err: errors.New("refused: not authorised"), Topic: true}
)

func outboxDB(t *testing.T) *pgtest.DB { return pgtest.New(t, migrations.Outbox) }

// fill appends n events by plain SQL, spread over keys; the payloads of a key count up from 0.
func fill(t *testing.T, db *pgtest.DB, n, keys int) {
	t.Helper()
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select 'payments', 'k' || (g % $2), 'T', convert_to((g / $2)::text, 'UTF8')
		from generate_series(0, $1 - 1) g`, n, keys)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// config has times that a busy machine does not overrun: a lost lease may repeat events, and a slow attempt may hold
// them. A test of such a time sets its own.
func config(change ...func(*relay.Config)) relay.Config {
	c := relay.Config{
		Lease: time.Minute, HoldAfter: time.Hour, Logger: quiet(), ProbeAwake: 5 * time.Millisecond,
		DrainTimeout: time.Minute,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func newRelay(t *testing.T, db *pgtest.DB, to relay.Publisher, cfg relay.Config) *relay.Relay {
	t.Helper()
	r, err := relay.New(db.Pool, to, cfg)
	if err != nil {
		t.Fatal(err)
	}
	relay.Patient(r)
	return r
}

// startRelay starts a relay and returns a function that stops it and returns Run's error.
func startRelay(t *testing.T, r *relay.Relay) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-done })
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// terminate ends a backend, and waits until it is gone.
func terminate(t *testing.T, db *pgtest.DB, pid int32) {
	t.Helper()
	db.Exec(t, `select pg_terminate_backend($1)`, pid)
	pgtest.AwaitSQL(t, db, `select not exists (select from pg_stat_activity where pid = $1)`, pid)
}

// awaitHeir is AwaitSQL after the death of all relays but the one of this name, whose leases it ends: a heartbeat that
// was on its way may renew them once more. An empty name: no relay is alive.
func awaitHeir(t *testing.T, db *pgtest.DB, name, sql string) {
	t.Helper()
	pgtest.Await(t, sql, func() (bool, error) {
		db.Exec(t, `update relay_member set seen = seen - interval '1 hour', lease_until = now() - interval '1 hour'
			where name <> $1`, name)
		db.Exec(t, `update outbox_lane set lease_until = now() - interval '1 hour' where lease_until > now()
			and owner is distinct from (select owner from relay_member where name = $1)`, name)
		return pgtest.One[bool](t, db, sql), nil
	})
}

// awaitDrained waits until the outbox and the journal are empty; events may still be held or parked.
func awaitDrained(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.AwaitSQL(t, db, drained)
}

const drained = `select not exists (select from outbox_event) and not exists (select from outbox_claim)`

// checkOrder checks that the first occurrences of every key are 0, 1, 2, ... and returns how many events occurred more
// than once.
func checkOrder(t *testing.T, log []event.Event, want int) (duplicates int) {
	t.Helper()
	next, seen := map[string]int{}, map[string]bool{}
	for _, e := range log {
		if seen[e.ID.String()] {
			duplicates++
			continue
		}
		seen[e.ID.String()] = true
		if got := string(e.Payload); got != fmt.Sprint(next[e.Key]) {
			t.Fatalf("key %s: event %s first occurs where %d was due", e.Key, got, next[e.Key])
		}
		next[e.Key]++
	}
	if len(seen) != want {
		t.Fatalf("%d events were published, want %d", len(seen), want)
	}
	return duplicates
}

func TestQueriesPrepare(t *testing.T) {
	t.Parallel()
	pgtest.PrepareAll(t, outboxDB(t), relay.Queries(t))
}

// opened is an outbox without a relay.
func opened(t *testing.T, db relay.DB, schema string) *relay.Outbox {
	t.Helper()
	box, err := relay.Open(db, schema)
	if err != nil {
		t.Fatal(err)
	}
	return box
}
