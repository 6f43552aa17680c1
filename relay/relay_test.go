package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

func TestOnceEmptiesTheOutboxInOrder(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	fill(t, db, 3000, 40)
	r := newRelay(t, db, to, config())
	for range 100 {
		n, err := r.Once(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	if dup := checkOrder(t, to.events(), 3000); dup != 0 {
		t.Errorf("%d duplicates without a fault", dup)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_lane where owner is not null`); n != 0 {
		t.Errorf("%d lanes are still owned after Once", n)
	}
}

func TestRunPublishesWhatArrives(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	fill(t, db, 2000, 100)
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	fill(t, db, 2000, 100)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := to.count(); got != 4000 {
		t.Errorf("%d events published, want 4000", got)
	}
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_lane where owner is not null) + (select count(*) from relay_member)`); n != 0 {
		t.Errorf("after a clean stop %d lanes or members are left", n)
	}
}

// TestEmptyPayloadIsNoTombstone: not even the first one that a session reads.
func TestEmptyPayloadIsNoTombstone(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '')`)
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if log := to.events(); len(log) != 1 || log[0].Payload == nil {
		t.Errorf("an empty payload was published as a tombstone: %+v", log)
	}
}

func TestNumbersRiseInEachLaneAndEventsAreWhole(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	db.Exec(t,
		`insert into outbox_event (source, tenant, topic, key, type, content_type, headers, payload, event_time) values
		('s', 't', 'payments', 'k', 'T', 'text/plain', '{"a": "b", "traceparent": "p"}', 'hello',
			'2026-01-02 03:04:05.678901+00'),
		('', '', 'payments', 'k', 'T', '', null, null, null), ('', '', 'payments', 'k', 'T', '', '{}', '', null)`)
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if len(log) != 3 {
		t.Fatalf("%d events", len(log))
	}
	e := log[0]
	if e.Source != "s" || e.Tenant != "t" || e.Topic != "payments" || e.Key != "k" || e.Type != "T" ||
		e.ContentType != "text/plain" ||
		e.Headers["a"] != "b" || e.Headers["traceparent"] != "p" || string(e.Payload) != "hello" ||
		!e.Time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)) {
		t.Errorf("got %+v", e)
	}
	if log[1].Payload != nil || log[1].Headers != nil || log[1].Time.IsZero() {
		t.Errorf("a tombstone was published as %+v", log[1])
	}
	if log[2].Payload == nil || len(log[2].Payload) != 0 {
		t.Errorf("an empty payload was published as %v", log[2].Payload)
	}
	meta := pgtest.One[string](t, db, `select outbox_id::text || '.' || incarnation from outbox_meta`)
	for i, e := range log {
		if e.Position.Epoch != meta || !e.Position.First ||
			(i > 0 && (e.Position.Seq <= log[i-1].Position.Seq || e.Position.Lane != log[i-1].Position.Lane)) {
			t.Errorf("event %d has position %+v", i, e.Position)
		}
	}
}

func TestP4_UnknownOutcomesAreSentAgainInOrder(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	to.verdict = func(call int, e event.Event) error {
		if call < 4 && strings.HasSuffix(e.Key, "7") {
			return errors.New("timed out")
		}
		return nil
	}
	fill(t, db, 1000, 20)
	said := make(chan string, 100)
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) {
		c.Pumps = 1
		c.Observer.Outage = func(what string, err error) { said <- fmt.Sprint(what, " ", err) }
	})))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 1000)
	if len(said) != 2 || <-said != "kafka timed out" || <-said != "kafka <nil>" {
		t.Errorf("the outage of three attempts and its end were not reported once each: %d more reports", len(said))
	}
}

func TestP3_2_ClaimsAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	for what, columns := range map[string]string{
		"payload": `null, convert_to(repeat('x', 400000), 'UTF8')`,
		"headers": `jsonb_build_object('h', repeat('x', 400000)), null`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			largest := 0
			claimed := func(n, _ int, _ time.Duration) { largest = max(largest, n) }
			db.Exec(t, `insert into outbox_event (topic, key, type, headers, payload) select 'payments', 'k', 'T', `+
				columns+` from generate_series(1, 20)`)
			stop := startRelay(t, newRelay(t, db, to,
				config(func(c *relay.Config) { c.ClaimBytes = 1 << 20; c.Pumps = 1; c.Observer.Claimed = claimed })))
			awaitDrained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			if largest < 1 || largest > 2 {
				t.Errorf("a claim of 1 MiB had %d events of 400 kB", largest)
			}
		})
	}
}

func TestBadConfigIsRefused(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	for name, cfg := range map[string]relay.Config{
		"Lease": {Lease: time.Millisecond}, "Pumps": {Pumps: 33}, "ClaimEvents": {ClaimEvents: 1},
		"ClaimBytes": {ClaimBytes: 1}, "FloorEvery": {FloorEvery: -1},
		"ProbeAwake": {ProbeAwake: time.Hour}, "OnFailure": {OnFailure: 7}, "schema": {Schema: "a;b"},
	} {
		if _, err := relay.New(db.Pool, &memory{}, cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := relay.New(nil, &memory{}, relay.Config{}); err == nil {
		t.Error("a nil pool was accepted")
	}
}

func TestRunSaysWhatToDoWithoutTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := newRelay(t, db, &memory{}, config())
	if err := r.Run(t.Context()); !errors.Is(err, relay.ErrTables) || !strings.Contains(err.Error(), "relay migrate") {
		t.Errorf("error %v", err)
	}
	if _, err := r.Once(t.Context()); err == nil || !strings.Contains(err.Error(), "relay migrate") {
		t.Errorf("error %v", err)
	}
}

func TestRunTwiceIsRefused(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	fill(t, db, 1, 1)
	r := newRelay(t, db, to, config())
	stop := startRelay(t, r)
	<-to.entered
	if err := r.Run(context.Background()); err == nil {
		t.Error("a second Run was accepted")
	}
	to.gate <- struct{}{}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
