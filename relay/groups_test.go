package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// topicPublisher is a publisher that refuses some topics. It records the largest number of events in a call.
type topicPublisher struct {
	refused func(topic string) bool
	most    int
	n       int
}

func (p *topicPublisher) Publish(_ context.Context, events []event.Event) []error {
	verdicts := make([]error, len(events))
	p.most = max(p.most, len(events))
	for i := range events {
		if p.refused(events[i].Topic) {
			verdicts[i] = &outcome.Refusal{Topic: true, Err: errors.New("not authorised")}
		} else {
			p.n++
		}
	}
	return verdicts
}

// drivenTopics drives a relay whose lane 0 has two events of 64 KiB in each of n topics.
func drivenTopics(t *testing.T, n int, to *topicPublisher) (*Driver, *pgtest.DB) {
	t.Helper()
	db := pgtest.New(t, migrations.Outbox)
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, payload, created_at)
		select 0, nextval('outbox_event_id_seq'), 't' || g, -1, 2 * g + e, false, gen_random_uuid(), '', '', 'k', 'T',
			'', convert_to(repeat('x', 65536), 'UTF8'), now()
		from generate_series(1, $1) g, generate_series(0, 1) e`, n)
	db.Exec(t, `update outbox_lane set reserved_seq = 100000`)
	r, err := New(db.Pool, to, Config{Lease: time.Hour, ClaimBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Drive(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d, db
}

// TestP4RefusedTopicsCostOthersNothing: once the relay knows which topics its lanes hold, claims for other topics do
// not read them again.
func TestP4RefusedTopicsCostOthersNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("holds events of thousands of topics")
	}
	t.Parallel()
	many := draw.Size(80, 200)
	to := &topicPublisher{refused: func(topic string) bool { return topic != "payments" }}
	d, db := drivenTopics(t, many, to)
	step := func() {
		t.Helper()
		db.Exec(t,
			`insert into outbox_event (topic, key, type) select 'payments', 'k' || g, 'T'
				from generate_series(1, 100) g`)
		if _, err := d.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2000 {
		if step(); len(d.r.Health.Closed()) == many {
			break
		}
	}
	if n := len(d.r.Health.Closed()); n != many {
		t.Fatalf("%d topics are closed, want %d", n, many)
	}
	d.sent = nil
	if step(); sent(d, sql.LookHeld) != nil {
		t.Errorf("with %d refused topics, a claim reads all held events", many)
	}
	if n := len(inside(d.r.Lanes).owned[0].groups); n != many {
		t.Errorf("the relay knows %d held topics of the lane, want %d", n, many)
	}
	// One topic is accepted again: claims drain it, and read none of the others.
	to.refused = func(topic string) bool { return topic != "payments" && topic != "t1" }
	d.r.cycle.Reopen(delivery.Whole("t1"))
	for range 20 {
		d.sent = nil
		step()
		drains := sent(d, sql.Drain)
		if sent(d, sql.LookHeld) != nil || drains != nil && len(drains.Arguments[4].([]string)) > 1 {
			t.Fatalf("a claim that drains one of %d topics reads all held events", many)
		}
		if len(inside(d.r.Lanes).owned[0].groups) < many {
			break
		}
	}
	if groups := inside(d.r.Lanes).owned[0].groups; len(groups) != many-1 || len(groups["t1"]) != 0 {
		t.Errorf("the relay knows %d held topics of the lane, want %d", len(groups), many-1)
	}
	if places, _ := d.r.Health.Due(time.Now().Add(time.Hour)); len(places) > 64 {
		t.Errorf("%d topics are tried at once, each with an event in memory", len(places))
	}
	to.refused = func(string) bool { return false }
	for i := range many {
		d.r.cycle.Reopen(delivery.Whole(fmt.Sprint("t", i+1)))
	}
	for range 2000 {
		if step(); pgtest.One[bool](t, db, `select not exists (select from outbox_held)`) {
			return
		}
	}
	t.Error("the held events are not published")
}

// sent is a statement that a claim has sent; nil: none has.
func sent(d *Driver, statement string) *pgx.QueuedQuery {
	for _, q := range d.sent {
		if q.SQL == d.r.SQL(statement) {
			return q
		}
	}
	return nil
}

// TestP4ResumedTopicsShareOneClaim: all groups of a lane together are limited by a claim's bytes.
func TestP4ResumedTopicsShareOneClaim(t *testing.T) {
	t.Parallel()
	const many = 100
	to := &topicPublisher{refused: func(string) bool { return false }}
	d, _ := drivenTopics(t, many, to)
	for range 2 * many * 3 {
		if _, err := d.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if to.n == 2*many {
			break
		}
	}
	if to.n != 2*many {
		t.Errorf("%d of %d events were published", to.n, 2*many)
	}
	if to.most<<16 > 1<<20 {
		t.Errorf("a claim of 1 MiB had %d events of 64 KiB", to.most)
	}
}
