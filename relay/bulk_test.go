package relay_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// drivenInBulk drives a relay that reads lanes in bulk after their first claim, five events of each lane at a time.
func drivenInBulk(t *testing.T, db *pgtest.DB, change ...func(*relay.Config)) (*floors, *relay.Relay) {
	t.Helper()
	to := &memory{}
	r := newRelay(t, db, to, config(append([]func(*relay.Config){func(c *relay.Config) {
		c.FloorEvery, c.RescanEvery, c.Lease, c.ClaimEvents = 1, -1, 3600e9, 5*relay.Lanes
	}}, change...)...))
	relay.SetBulkFrom(r, 1)
	d, err := relay.Drive(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return &floors{Driver: d, t: t, db: db, to: to}, r
}

// steps runs steps until the outbox is empty, and counts the lanes that were read in bulk. A step may take no event of
// a lane: a large row ends the lane's part of a claim.
func (f *floors) steps(r *relay.Relay) (bulk int) {
	f.t.Helper()
	for range 1000 {
		if _, err := f.Step(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		if pgtest.One[bool](f.t, f.db, `select not exists (select from outbox_event)`) {
			return bulk
		}
		bulk += relay.BulkLanes(r)
	}
	f.t.Fatal("some events are never claimed")
	return 0
}

// TestP3Bulk: many small claims, read in bulk, publish every event once, in order, and with consecutive numbers.
func TestP3Bulk(t *testing.T) {
	t.Parallel()
	f, r := drivenInBulk(t, outboxDB(t))
	fill(t, f.db, 5000, 200)
	if _, err := f.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := relay.BulkLanes(r); n != relay.Lanes {
		t.Errorf("%d lanes will be read in bulk, want all", n)
	}
	f.riseFully()
	f.drain()
	if n := relay.BulkLanes(r); n != 0 {
		t.Errorf("%d empty lanes will be read in bulk", n)
	}
	log := f.to.events()
	if n := checkOrder(t, log, 5000); n != 0 {
		t.Errorf("%d events were published twice", n)
	}
	next := map[int16]int64{}
	for _, e := range log {
		if want, ok := next[e.Position.Lane]; ok && e.Position.Seq != want {
			t.Fatalf("lane %d: number %d follows %d", e.Position.Lane, e.Position.Seq, want-1)
		}
		next[e.Position.Lane] = e.Position.Seq + 1
	}
	awaitDrained(t, f.db)
}

// TestP3BulkLarge: a row that is large, or has large headers, is not read in bulk but by its id, and keeps its place in
// the order.
func TestP3BulkLarge(t *testing.T) {
	t.Parallel()
	f, r := drivenInBulk(t, outboxDB(t), func(c *relay.Config) { c.ClaimBytes = 33_000 * relay.Lanes })
	for i := range 100 { // all of one lane
		size, headers := 1500, "null"
		switch i {
		case 17, 18:
			size = 9000
		case 25:
			size = 3_000_000
		case 30:
			size, headers = 10, fmt.Sprintf(`{"h": "%s"}`, strings.Repeat("x", 20_000))
		}
		f.db.Exec(t,
			`insert into outbox_event (topic, key, type, headers, payload) values ('payments', 'k', 'T',
					nullif($1::jsonb, 'null'), convert_to(rpad($2::text, $3, ' '), 'UTF8'))`,
			headers, fmt.Sprint(i), size)
	}
	bulk := f.steps(r)
	if bulk == 0 {
		t.Error("the lane was never read in bulk")
	}
	log := f.to.events()
	for i, e := range log {
		want := 1500
		switch i {
		case 17, 18:
			want = 9000
		case 25:
			want = 3_000_000
		case 30:
			want = 10
		}
		if strings.TrimSpace(string(e.Payload)) != fmt.Sprint(i) || len(e.Payload) != want ||
			(len(e.Headers["h"]) != 0) != (i == 30) {
			t.Fatalf("event %d is %.20q of %d bytes, with %d bytes of headers", i, e.Payload, len(e.Payload),
				len(e.Headers["h"]))
		}
	}
	if len(log) != 100 {
		t.Errorf("%d events are published, want 100", len(log))
	}
	awaitDrained(t, f.db)
}

// TestP3BulkBounds: a claim keeps its limits when ids are denser, or events larger, than those before.
func TestP3BulkBounds(t *testing.T) {
	t.Parallel()
	f, r := drivenInBulk(t, outboxDB(t), func(c *relay.Config) { c.ClaimEvents, c.ClaimBytes = 20*relay.Lanes, 1<<20 })
	// Every tenth id first, then every id; small events first, then the largest that are allowed.
	f.db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select case when g % 10 = 0 then 'payments'
			else 'gone' end,
		case when g % 10 = 0 then 'k' || (g / 10 % 64) else 'gone' end, 'T', convert_to((g / 640)::text, 'UTF8')
		from generate_series(0, 31999) g`)
	f.db.Exec(t, `delete from outbox_event where topic = 'gone'`)
	f.db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || (g % 64), 'T',
			convert_to(rpad((50 + g / 64)::text, 1900), 'UTF8')
		from generate_series(0, 3199) g`)
	for range 1000 {
		before := len(f.to.events())
		n, err := f.Step(t.Context())
		f.must(err)
		bytes := 0
		for _, e := range f.to.events()[before:] {
			bytes += len(e.Payload)
		}
		if n > 20*relay.Lanes || bytes > 1<<20 {
			t.Errorf("a claim had %d events and %d bytes, want %d and %d at most", n, bytes, 20*relay.Lanes, 1<<20)
		}
		if pgtest.One[bool](t, f.db, `select not exists (select from outbox_event)`) {
			break
		}
	}
	if n := len(f.to.events()); n != 6400 || relay.BulkLanes(r) == 0 {
		t.Errorf("%d events are published, want 6400; %d lanes are read in bulk", n, relay.BulkLanes(r))
	}
	awaitDrained(t, f.db)
}

// TestP3BulkHole: behind a hole of ids, which a roll-back has left, events are much denser than the last ones. A claim
// that reads far too many takes none of them, and its lanes are claimed one by one.
func TestP3BulkHole(t *testing.T) {
	t.Parallel()
	f, r := drivenInBulk(t, outboxDB(t))
	insert := func(from, to int) {
		f.db.Exec(t,
			`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || (g % 64), 'T',
				convert_to((g / 64)::text, 'UTF8')
			from generate_series($1::int, $2::int) g`, from, to)
	}
	insert(0, 703) // enough for a claim with events from both sides of the hole
	f.db.Exec(t, `select setval('outbox_event_id_seq', 100000)`)
	insert(704, 9_999)
	tooMany := 0
	for range 1000 {
		bulk := relay.BulkLanes(r)
		n, err := f.Step(t.Context())
		f.must(err)
		if n == 0 && bulk > 0 {
			tooMany++
		}
		if pgtest.One[bool](t, f.db, `select not exists (select from outbox_event)`) {
			break
		}
	}
	if n := checkOrder(t, f.to.events(), 10_000); n != 0 {
		t.Errorf("%d events were published twice", n)
	}
	if tooMany == 0 {
		t.Error("no claim read too many events: the test proves nothing")
	}
	awaitDrained(t, f.db)
}

// TestP3BulkTooMany: ids are denser than before, and their rows are stored from the highest to the lowest. The rows
// that a claim's limit lets through are then not the next ones.
func TestP3BulkTooMany(t *testing.T) {
	t.Parallel()
	f, r := drivenInBulk(t, outboxDB(t))
	f.db.Exec(t, `insert into outbox_event (id, topic, key, type, payload) overriding system value
		select case when g < 10 then 1000 * (g + 1) else 10000 + g end, 'payments', 'k', 'T', convert_to(g::text,
			'UTF8')
		from generate_series(0, 99) g order by case when g < 10 then g else 200 - g end`)
	f.db.Exec(t, `select setval('outbox_event_id_seq', 10099)`)
	bulk := f.steps(r)
	if n := checkOrder(t, f.to.events(), 100); n != 0 || bulk == 0 {
		t.Errorf("%d events were published twice; lanes were read in bulk %d times", n, bulk)
	}
	awaitDrained(t, f.db)
}

// TestP3BulkTableOrder: rows are read in the order in which the table stores them. That is not the order of ids after
// vacuum has freed space between them, or after the table was rewritten. Events are published in the order of ids.
func TestP3BulkTableOrder(t *testing.T) {
	t.Parallel()
	f, r := drivenInBulk(t, outboxDB(t))
	f.db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || (g % 64), 'T',
			convert_to((g / 64)::text, 'UTF8') from generate_series(0, 5000) g`)
	f.db.Exec(t, `create index by_key on outbox_event (key desc)`)
	f.db.Exec(t, `cluster outbox_event using by_key`)
	if pgtest.One[bool](t, f.db,
		`select bool_and(ahead) from (select ctid > lag(ctid) over (order by id) as ahead from outbox_event) o`) {
		t.Fatal("the rows are stored in the order of their ids: the test proves nothing")
	}
	bulk := f.steps(r)
	if n := checkOrder(t, f.to.events(), 5001); n != 0 || bulk == 0 {
		t.Errorf("%d events were published twice; lanes were read in bulk %d times", n, bulk)
	}
	awaitDrained(t, f.db)
}

// TestP3BulkLocks: a claim that holds its lanes' locks may wait between its two pipelines. If its connection is lost
// there, nothing has changed. The second pipeline never uses another connection, which would not hold the locks.
func TestP3BulkLocks(t *testing.T) {
	t.Parallel()
	type fault struct {
		at     string
		action pgtest.Action
	}
	for name, fault := range map[string]fault{
		"cut before": {"read", pgtest.CutBefore}, "reply dropped": {"read", pgtest.DropReply},
		"cut after":             {"read", pgtest.CutAfter},
		"cut before the settle": {"settle placed", pgtest.CutBefore}, "reply to the settle dropped": {
			"settle placed",
			pgtest.DropReply,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to, each := outboxDB(t), &memory{}, 0
			more := func() { appendTo(t, db, "payments", 510, 30, each); each += 17 }
			more()
			proxy := pgtest.NewProxy(t, db.URL)
			trap := proxy.On(statement(fault.at), 0, fault.action)
			r, err := relay.New(poolAt(t, proxy.URL()), to,
				config(func(c *relay.Config) { c.Pumps, c.ClaimEvents = 1, 3*relay.Lanes }))
			if err != nil {
				t.Fatal(err)
			}
			relay.SetBulkFrom(r, 1)
			stop := startRelay(t, r)
			awaitTrap(t, db, trap, more)
			trap.Release()
			awaitDrained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			checkNumbers(t, to.events())
			checkOrder(t, to.events(), 30*each)
		})
	}
}

// TestP3BulkMoved: rows that were read in bulk have moved within the table when they are settled. The settle deletes
// them, and not the rows that took their places.
func TestP3BulkMoved(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(f *floors, claimed event.Event) (more int){
		"rewritten": func(f *floors, _ event.Event) int {
			f.db.Exec(f.t, `cluster outbox_event using outbox_event_pkey`)
			return 0
		},
		"deleted": func(f *floors, claimed event.Event) int {
			f.db.Exec(f.t, `delete from outbox_event where message_id = $1`, claimed.ID)
			return 0
		},
		"replaced": func(f *floors, claimed event.Event) (more int) {
			was := pgtest.One[string](f.t, f.db, `delete from outbox_event where message_id = $1 returning ctid::text`,
				claimed.ID)
			// An analyze may delay it, and then no other row dies: such a vacuum leaves the place to the indexes.
			pgtest.Await(f.t, "another row in the freed place", func() (bool, error) {
				f.db.Exec(f.t, `vacuum (index_cleanup on) outbox_event`)
				f.db.Exec(f.t,
					`insert into outbox_event (topic, key, type, payload) select 'p', 'n' || $1::int, 'T',
						convert_to(g::text, 'UTF8') from generate_series(0, 999) g`, more/1000)
				more += 1000
				return pgtest.One[bool](f.t, f.db,
					`select exists (select from outbox_event where ctid = $1::text::tid)`, was), nil
			})
			return more
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log strings.Builder
			gone := 0
			f, r := drivenInBulk(t, pgtest.NewDatabase(t, migrations.Outbox), func(c *relay.Config) {
				c.Observer.Settled = func(_, discarded int, _ time.Duration) { gone += discarded }
				c.Logger, c.ClaimEvents = slog.New(slog.NewTextHandler(&log, nil)), 50*relay.Lanes
			})
			fill(t, f.db, 20_000, 200)
			want, moved := 20_000, false
			f.to.verdict = func(call int, e event.Event) error {
				if call == 3 && !moved {
					moved = true
					want += move(f, e)
				}
				return nil
			}
			if bulk := f.steps(r); bulk == 0 || !moved {
				t.Errorf("lanes were read in bulk %d times", bulk)
			}
			if n := checkOrder(t, f.to.events(), want); n != 0 {
				t.Errorf("%d events were published twice", n)
			}
			awaitDrained(t, f.db)
			if n := strings.Count(log.String(), "settled by their ids instead"); n != 1 {
				t.Errorf("%d settles deleted by ids instead, want 1: %s", n, log.String())
			}
			if deleted := map[string]int{"deleted": 1, "replaced": 1}[name]; gone != deleted {
				t.Errorf("%d events were missing at a settle, want %d", gone, deleted)
			}
		})
	}
}

// TestP3_5_LostLaneKeepsItsRows: several lanes were read in bulk and are settled together, and one was lost meanwhile.
// Its rows and its entry stay for the next owner; the other lanes are settled.
func TestP3_5_LostLaneKeepsItsRows(t *testing.T) {
	t.Parallel()
	settled := 0
	f, r := drivenInBulk(t, outboxDB(t), func(c *relay.Config) {
		c.Observer.Settled = func(events, _ int, _ time.Duration) { settled += events }
	})
	fill(t, f.db, 1000, 200)
	_, err := f.Step(t.Context())
	f.must(err)
	lost := int16(-1)
	f.to.verdict = func(_ int, e event.Event) error {
		if lost < 0 {
			lost = e.Position.Lane
			f.db.Exec(t, `update outbox_lane set fence = fence + 1 where lane = $1`, lost)
		}
		return nil
	}
	_, err = f.Step(t.Context())
	f.must(err)
	if lanes := pgtest.One[[]int16](t, f.db, `select array_agg(lane) from outbox_claim`); !slices.Equal(lanes,
		[]int16{lost}) {
		t.Errorf("lanes %v have entries, want lane %d", lanes, lost)
	}
	if gone := pgtest.One[int](t, f.db, `select count(*) from outbox_claim c cross join unnest(c.ids) u (id)
		where not exists (select from outbox_event e where e.lane = c.lane and e.id = u.id)`); gone != 0 {
		t.Errorf("%d rows of a lane that was lost are gone", gone)
	}
	f.must(f.Beat(t.Context()))
	f.steps(r)
	if n := checkOrder(t, f.to.events(), 1000); n == 0 {
		t.Error("no event was sent again: the test proves nothing")
	}
	awaitDrained(t, f.db)
	if settled != 1000 {
		t.Errorf("%d events were reported as settled, want 1000", settled)
	}
}

// TestP6RescanSkipsLanesWithBacklog: a rescan skips lanes with a backlog. Once they have caught up it finds the rows
// below their floors.
func TestP6RescanSkipsLanesWithBacklog(t *testing.T) {
	t.Parallel()
	var found []int16
	f, r := drivenInBulk(t, outboxDB(t), func(c *relay.Config) {
		c.ClaimEvents, c.Observer.BelowFloor = 50*relay.Lanes, func(lane int16) { found = append(found, lane) }
	})
	fill(t, f.db, 20_000, 2000)
	for range 3 {
		_, err := f.Step(t.Context())
		f.must(err)
		f.must(f.FloorStep(t.Context()))
	}
	_, floors, _ := f.Floors()
	if n := relay.BulkLanes(r); n != relay.Lanes || slices.Min(floors) < 2 {
		t.Fatalf("%d lanes have a backlog, the floors are %v: the test proves nothing", n, floors)
	}
	f.db.Exec(t,
		`insert into outbox_event (id, topic, key, type, payload) overriding system value
			values (1, 'payments', 'below', 'T', '0')`)
	f.must(f.Rescan(t.Context()))
	if len(found) > 0 {
		t.Errorf("lanes %v were rescanned", found)
	}
	for relay.BulkLanes(r) > 0 {
		_, err := f.Step(t.Context())
		f.must(err)
	}
	f.must(f.Rescan(t.Context()))
	f.drain()
	if len(found) != 1 {
		t.Errorf("lanes %v had a row below their floors, want one", found)
	}
	checkOrder(t, f.to.events(), 20_001)
}
