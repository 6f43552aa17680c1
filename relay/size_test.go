package relay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// TestP8DueEventsMoveInParts: large events that come due together are moved within a claim's limits of count and bytes.
func TestP8DueEventsMoveInParts(t *testing.T) {
	t.Parallel()
	const events, size = 24, 256 << 10
	most := 0
	f := driven(t, outboxDB(t), func(c *relay.Config) {
		c.ClaimBytes = 1 << 20
		c.Observer.Due = func(n int) { most = max(most, n) }
	})
	f.db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload)
		select now() - interval '1 hour' + g * interval '1 ms', 'payments', 'k', 'T',
			convert_to(rpad(g || ' ', $2, 'x'), 'UTF8') from generate_series(1, $1) g`, events, size)
	for range events {
		_, err := f.Step(t.Context())
		f.must(err)
	}
	if most*size > 1<<20 {
		t.Errorf("a claim of 1 MiB moved %d events of 256 KiB", most)
	}
	if n := f.to.count(); n != events {
		t.Fatalf("%d of %d events were published", n, events)
	}
	for i, e := range f.to.events() {
		if want := fmt.Sprintf("%d ", i+1); string(e.Payload[:len(want)]) != want {
			t.Fatalf("event %q was published as number %d", e.Payload[:5], i+1)
		}
	}
}

// TestP4ManyListsAreReleasedInOneClaim: the rows that a claim reads are not the number of lists times their length.
func TestP4ManyListsAreReleasedInOneClaim(t *testing.T) {
	t.Parallel()
	const keys, each, limit = 200, 200, 200
	f := driven(t, outboxDB(t))
	f.db.Exec(t,
		`insert into outbox_parked_key (lane, tenant, topic, key, state, reason, code) select 0, '', 'payments',
			'k' || g, 'releasing', '', '' from generate_series(1, $1) g`, keys)
	f.db.Exec(t,
		`insert into outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic, key,
				type, content_type, created_at)
		select 0, g, false, false, 1, gen_random_uuid(), '', '', 'payments', 'k' || (g % $1 + 1), 'T', '', now()
		from generate_series(1, $1::int * $2::int) g`, keys, each)
	f.db.Exec(t, `analyze outbox_parked, outbox_parked_key`)
	owner := pgtest.One[string](t, f.db, `select owner::text from outbox_lane where lane = 0`)
	read := f.pages("list", []int16{0}, f.Fences([]int16{0}), owner, []int64{0}, limit, 1<<20, 512, 1<<20)
	if read > keys*20 {
		t.Errorf("a claim of %d events from %d lists of %d reads %d pages", limit, keys, each, read)
	}
	t.Logf("it reads %d pages", read)
}

// limitClaims is a database that times out for a claim of more than most events of the lane of a key.
func limitClaims(t *testing.T, db *pgtest.DB, key string, most int) {
	t.Helper()
	db.Exec(t, fmt.Sprintf(`create function too_much() returns trigger language plpgsql as $$ begin
		if new.lane = hashtextextended('%s' collate "C", 0) & 31 and cardinality(new.ids) > %d then
			raise 'canceling statement due to statement timeout' using errcode = 'query_canceled';
		end if;
		return new; end $$`, key, most))
	db.Exec(t, `create trigger too_much before insert on outbox_claim for each row execute function too_much()`)
}

// TestP3_2_SlowClaimIsHalved: a claim that did not fit into the lease is not repeated at the same size.
func TestP3_2_SlowClaimIsHalved(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	limitClaims(t, db, "k0", 10)
	fill(t, db, 4000, 40)
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if dup := checkOrder(t, to.events(), 4000); dup != 0 {
		t.Errorf("%d duplicates", dup)
	}
}

// TestP3_2_SlowLaneIsClaimedAlone: a lane that cannot be claimed does not stop the others.
func TestP3_2_SlowLaneIsClaimedAlone(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	limitClaims(t, db, "k0", 0)
	fill(t, db, 4000, 40)
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.Pumps = 1 })))
	pgtest.AwaitSQL(t, db,
		`select not exists (select from outbox_event where lane <> hashtextextended('k0' collate "C", 0) & 31)`)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestP3_2_EveryColumnCounts: a claim is limited by the size of its events in memory, in every column, however well
// they compress.
func TestP3_2_EveryColumnCounts(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		size    int
		columns string
	}{
		"headers that compress": {60_000, `'k', '', '', 'T', '', jsonb_build_object('h', repeat('x', 60000))`},
		"texts": {
			16_000,
			`rpad('k', 8000, 'x'), repeat('x', 2000), repeat('x', 2000), repeat('x', 2000), repeat('x', 2000), null`,
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			largest := 0
			f := driven(t, outboxDB(t), func(c *relay.Config) {
				c.ClaimBytes = 1 << 20
				c.Observer.Claimed = func(n, _ int, _ time.Duration) { largest = max(largest, n) }
			})
			f.db.Exec(t,
				`insert into outbox_event (topic, key, tenant, source, type, content_type, headers) select 'payments', `+c.columns+` from generate_series(1, 100)`)
			for range 100 {
				if n, err := f.Step(t.Context()); n == 0 {
					f.must(err)
					break
				}
			}
			if n := f.to.count(); n != 100 {
				t.Fatalf("%d of 100 events were published", n)
			}
			if largest*c.size > 1<<20 {
				t.Errorf("a claim of 1 MiB had %d events of %d bytes", largest, c.size)
			}
		})
	}
}

// TestTextsAreBounded: the tables reject texts that outbox.Append would refuse.
func TestTextsAreBounded(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	for _, table := range []string{"outbox_event (", "outbox_scheduled (due, "} {
		for _, column := range []string{"tenant", "source", "content_type", "type"} {
			columns, values := "topic, type, "+column, "'payments', 'T', repeat('x', $1)"
			if column == "type" {
				columns, values = "topic, type", "'payments', repeat('x', $1)"
			}
			if strings.Contains(table, "due") {
				values = "now(), " + values
			}
			insert := "insert into " + table + columns + ") values (" + values + ")"
			db.Exec(t, insert, 2048)
			if _, err := db.Pool.Exec(t.Context(), insert, 2049); !pgerr.Is(err, pgerr.CheckViolation) {
				t.Errorf("%s with a %s of 2049 bytes: %v", table, column, err)
			}
		}
	}
}

// held500 holds 500 events of key k3, in a database that refuses to park more than 100 in one statement.
func held500(t *testing.T, db *pgtest.DB, change ...func(*relay.Config)) (*floors, *broker) {
	t.Helper()
	b := newBroker(1)
	b.set(refuseK3("0"))
	db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, payload, created_at)
		select hashtextextended('k3' collate "C", 0) & 31, nextval('outbox_event_id_seq'), 'payments', 0, g, false,
			gen_random_uuid(), '', '', 'k3', 'T', '', convert_to((g - 1)::text, 'UTF8'), now()
		from generate_series(1, 500) g`)
	db.Exec(t, `update outbox_lane set reserved_seq = 1000`)
	db.Exec(t, `create function few() returns trigger language plpgsql as $$ begin
		if (select count(*) > 100 from new) then
			raise 'canceling statement due to statement timeout' using errcode = 'query_canceled';
		end if;
		return null; end $$`)
	db.Exec(t,
		`create trigger few after insert on outbox_parked referencing new table as new for each statement execute function few()`)
	d, err := relay.Drive(t.Context(), newRelay(t, db, b,
		config(append(change, func(c *relay.Config) { c.Lease, c.ClaimEvents = time.Hour, 64 })...)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return &floors{Driver: d, t: t, db: db}, b
}

// TestP4RefusalBeforeManyHeldEvents: the first of them is refused. The others join its list in parts, and none is sent.
func TestP4RefusalBeforeManyHeldEvents(t *testing.T) {
	t.Parallel()
	f, b := held500(t, outboxDB(t))
	fillTopic(t, f.db, "orders", 0, 1)
	for range 600 {
		_, err := f.Step(t.Context())
		f.must(err)
		if pgtest.One[int](t, f.db, `select count(*) from outbox_parked`) == 500 {
			break
		}
	}
	if parked, held := pgtest.One[int](t, f.db, `select count(*) from outbox_parked`),
		pgtest.One[int](t, f.db, `select count(*) from outbox_held`); parked != 500 || held != 0 {
		t.Errorf("%d are parked, %d are held, want 500 and 0", parked, held)
	}
	if got := b.firsts("k3"); len(got) != 0 {
		t.Errorf("events behind the refused one were sent: %.10q", got)
	}
}

// TestP4ReleaseBeforeManyHeldEvents: an operator acts on the key while most of its events are still held.
func TestP4ReleaseBeforeManyHeldEvents(t *testing.T) {
	t.Parallel()
	begun := func(t *testing.T) (*floors, *broker) {
		t.Helper()
		f, b := held500(t, outboxDB(t))
		for pgtest.One[int](t, f.db, `select count(*) from outbox_parked`) == 0 {
			_, err := f.Step(t.Context())
			f.must(err)
		}
		if n := pgtest.One[int](t, f.db, `select count(*) from outbox_held`); n < 300 {
			t.Fatalf("only %d are still held", n)
		}
		f.db.Exec(t, `drop trigger few on outbox_parked`)
		return f, b
	}
	t.Run("released", func(t *testing.T) {
		t.Parallel()
		f, b := begun(t)
		b.set(nil)
		f.db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k3', 'T', '500')`)
		if n, err := newOperator(t, f.db).ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{},
			"mended"); n != 500 ||
			err != nil {
			t.Fatalf("%d events are released, want 500: %v", n, err)
		}
		for range 2000 {
			_, err := f.Probe(t.Context())
			f.must(err)
			_, err = f.Step(t.Context())
			f.must(err)
			if len(b.firsts("k3")) == 501 {
				break
			}
		}
		checkKey(t, b, "k3", 501)
		checkWatermark(t, b.events())
	})
	t.Run("discarded", func(t *testing.T) {
		t.Parallel()
		f, _ := begun(t)
		d, err := newOperator(t, f.db).DiscardKey(t.Context(), "", "payments", "k3", admin.Seen{}, "wrong")
		if d.Events != 500 || err != nil {
			t.Errorf("%d events were discarded, want 500: %v", d.Events, err)
		}
		awaitEmpty(t, f.db)
	})
	t.Run("tried", func(t *testing.T) {
		t.Parallel()
		f, b := begun(t)
		b.set(func(*event.Event, int32) answer { return forbidden })
		f.db.Exec(t, `update outbox_held set partition = -1`)
		_, err := f.Step(t.Context())
		f.must(err)
		b.set(nil)
		f.must(f.Try(t.Context(), "payments"))
		if got := b.firsts("k3"); len(got) != 0 {
			t.Errorf("a try sent %q before parked events of its key", got)
		}
	})
}

// TestParkedEventsAreFoundByID: the statements that lock the lane of one parked event read few pages, however many are
// parked.
func TestParkedEventsAreFoundByID(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t,
		`insert into outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic, key,
				type, content_type, created_at)
		select g & 31, g, true, false, 1, gen_random_uuid(), '', '', 'payments', '', 'T', '', now()
		from generate_series(1, 20000) g`)
	f.db.Exec(t, `analyze outbox_parked`)
	lock := f.pages("lockParked", 19_999)
	if lock > 50 {
		t.Errorf("to lock the lane of one of 20,000 parked events reads %d pages", lock)
	}
	if e, err := newOperator(t, f.db).ParkedEvent(t.Context(), 19_999); e.ID != 19_999 || err != nil {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestP4HeldGroupsAreLookedUpByLane: with many refused topics, the pages that a claim reads follow its number of lanes.
// A claim that timed out succeeds with fewer lanes.
func TestP4HeldGroupsAreLookedUpByLane(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
			content_type, created_at)
		select l, g * 32 + l, 't' || g, -1, g, false, gen_random_uuid(), '', '', '', 'T', '', now()
		from generate_series(1, 300) g, generate_series(0, 31) l`)
	f.db.Exec(t, `analyze outbox_held`)
	lanes, _, _ := f.Floors()
	owner := pgtest.One[string](t, f.db, `select min(owner::text) from outbox_lane`)
	all := f.pages("lookHeld", lanes, f.Fences(lanes), owner)
	if one := f.pages("lookHeld", lanes[:1], f.Fences(lanes[:1]), owner); one > all/5 {
		t.Errorf("the groups of one lane take %d pages, those of %d lanes %d", one, len(lanes), all)
	}
}

// TestP4LastStepOfAcceptanceReadsRest: the last step of an acceptance, for which every relay waits, does not read rows
// that earlier steps have moved.
func TestP4LastStepOfAcceptanceReadsRest(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
			content_type, created_at)
		select g % 32, g, 'payments', -1, g, true, gen_random_uuid(), '', '', '', 'T', '', now()
		from generate_series(1, 50000) g`)
	f.db.Exec(t, `analyze outbox_held`)
	if n := f.pages("regroup", "payments"); n > 10*relay.Lanes {
		t.Errorf("with no rows left to move it read %d pages", n)
	}
}

// TestArchiveIsCleanedWhole: with many rows, and with a publication of all tables.
func TestArchiveIsCleanedWhole(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox)
	db.Exec(t, `create publication everything for all tables`)
	db.Exec(t,
		`insert into outbox_archive_default (published_at, epoch, lane, seq, id, message_id, source, tenant, topic, key,
				type, content_type, created_at)
		select now() - interval '40 days', 'e', 0, g, g, gen_random_uuid(), '', '', 'p', 'k', 'T', '', now()
		from generate_series(1, 110000) g`)
	done, err := opened(t, db.Pool, "").MaintainArchive(t.Context(), 30)
	if err != nil || done.Cleaned != 110_000 {
		t.Errorf("%d of 110000 old rows are gone: %v", done.Cleaned, err)
	}
}
