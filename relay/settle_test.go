package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// slowBroker is a broker that announces its first call and waits.
type slowBroker struct {
	*broker
	entered, gate chan struct{}
	calls         int
}

func (s *slowBroker) Publish(ctx context.Context, events []event.Event) []error {
	if s.calls++; s.calls == 1 {
		close(s.entered)
		<-s.gate
	}
	return s.broker.Publish(ctx, events)
}

// startPublishing is a driven relay that is publishing the first events of 20 keys, to a broker that will answer by
// verdict.
func startPublishing(t *testing.T, db *pgtest.DB, verdict func(e *event.Event, partition int32) answer,
	change ...func(*relay.Config),
) (d *relay.Driver, answered func() error) {
	t.Helper()
	b := &slowBroker{broker: newBroker(2), entered: make(chan struct{}), gate: make(chan struct{})}
	b.set(verdict)
	d, err := relay.Drive(t.Context(), newRelay(t, db, b,
		config(append(change, func(c *relay.Config) { c.Lease = time.Hour })...)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	appendTo(t, db, "payments", 40, 20, 0)
	stepped := make(chan error, 1)
	go func() { _, err := d.Step(t.Context()); stepped <- err }()
	<-b.entered
	return d, func() error { close(b.gate); return <-stepped }
}

// allRows lists all rows of the outbox's tables.
const allRows = `select coalesce(string_agg(x, e'\n' order by x), 'nothing') from (
	select 'event ' || lane || ' ' || id || ' ' || xmin from outbox_event
	union all select 'entry ' || lane || ' ' || first_seq || ' ' || xmin from outbox_claim
	union all select 'held ' || lane || ' ' || id from outbox_held
	union all select 'parked ' || lane || ' ' || id from outbox_parked
	union all select 'mark ' || key from outbox_parked_key) as t (x)`

// TestP3_5_OnlyTheOwnerSettles: a relay loses its lanes while it publishes. Its settle then changes nothing, and no
// event is reported as settled, held or parked.
func TestP3_5_OnlyTheOwnerSettles(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]func(e *event.Event, partition int32) answer{
		"acked":  func(*event.Event, int32) answer { return answer{} },
		"parked": refuseK3("0"),
		"held": func(_ *event.Event, partition int32) answer {
			if partition == 1 {
				return answer{err: refusedTopic}
			}
			return answer{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxDB(t)
			reported := 0
			_, answered := startPublishing(t, db, verdict, func(cfg *relay.Config) {
				cfg.Observer.Settled = func(events, _ int, _ time.Duration) { reported += events }
				cfg.Observer.Held = func(_ string, _ int32, events int) { reported += events }
				cfg.Observer.Parked = func(events int) { reported += events }
			})
			db.Exec(t, `update outbox_lane set owner = gen_random_uuid(), fence = fence + 1`)
			before := pgtest.One[string](t, db, allRows)
			if err := answered(); err != nil {
				t.Fatal(err)
			}
			if after := pgtest.One[string](t, db, allRows); after != before {
				t.Errorf("a stale owner's settle changed the outbox from\n%s\nto\n%s", before, after)
			}
			if reported != 0 {
				t.Errorf("a stale owner's settle reported %d events", reported)
			}
		})
	}
}

// TestP3_5_SettleDeletesItsOwnEntry: and no other entry of its lanes, whichever claim wrote that.
func TestP3_5_SettleDeletesItsOwnEntry(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]func(e *event.Event, partition int32) answer{
		"acked":  func(*event.Event, int32) answer { return answer{} },
		"parked": refuseK3("0"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxDB(t)
			_, answered := startPublishing(t, db, verdict)
			db.Exec(t,
				`insert into outbox_claim (lane, first_seq, ids, seqs) select lane, 1::bigint << 40, array[7],
					array[1::bigint << 40] from outbox_lane`)
			if err := answered(); err != nil {
				t.Fatal(err)
			}
			if n := pgtest.One[int](t, db,
				`select count(*) from outbox_claim where first_seq = 1::bigint << 40`); n != relay.Lanes {
				t.Errorf("%d entries of another claim are left of %d", n, relay.Lanes)
			}
			if n := pgtest.One[int](t, db, `select count(*) from outbox_claim`); n != relay.Lanes {
				t.Errorf("%d entries are left in all: the settle must delete its own", n)
			}
		})
	}
}

// TestP3_7_UnknownCommitRaisesFence: the reply to the COMMIT of a claim or settle is lost. The lanes are not claimed
// again before a heartbeat has raised their fences, because the transaction may still be running.
func TestP3_7_UnknownCommitRaisesFence(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"take", "take marked", "settle"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			proxy := pgtest.NewProxy(t, db.URL)
			r, err := relay.New(poolAt(t, proxy.URL()), to, config(func(c *relay.Config) { c.Lease = time.Hour }))
			if err != nil {
				t.Fatal(err)
			}
			d, err := relay.Drive(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(d.Close)
			if step == "take" { // which is the statement for lanes that are known
				if _, err := d.Step(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			fill(t, db, 320, 160)
			trap := proxy.On(commitAfter(step), 0, pgtest.CutBefore)
			_, _ = d.Step(t.Context())
			<-trap.Fired()
			fences := `select sum(fence)::bigint from outbox_lane where lane in (select lane from outbox_event)`
			before, lanes := pgtest.One[int64](t, db, fences),
				pgtest.One[int64](t, db, `select count(distinct lane) from outbox_event`)
			published := to.count()
			if _, err := d.Step(t.Context()); err != nil || to.count() != published {
				t.Fatalf("the lanes were claimed again under the fence of a COMMIT whose outcome is unknown: %v", err)
			}
			if err := d.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := pgtest.One[int64](t, db, fences); after != before+lanes {
				t.Errorf("sum of fences %d, %d after the heartbeat: each of %d must rise by one", before, after,
					lanes)
			}
			if _, err := d.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkNumbers(t, to.events())
			checkOrder(t, to.events(), 320)
		})
	}
}

// TestP3_5_DeletedEventsAreCounted: another session deletes events from the outbox while the relay publishes them.
func TestP3_5_DeletedEventsAreCounted(t *testing.T) {
	t.Parallel()
	acked := func(*event.Event, int32) answer { return answer{} }
	for name, c := range map[string]struct {
		verdict func(*event.Event, int32) answer
		days    int
	}{"deleted": {acked, 0}, "archived": {acked, 1}, "with a refused event": {refuseK3("1"), 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxDB(t)
			var settled, gone int
			_, answered := startPublishing(t, db, c.verdict, func(cfg *relay.Config) {
				cfg.ArchiveDays = c.days
				cfg.Observer.Settled = func(n, discarded int, _ time.Duration) {
					settled, gone = settled+n,
						gone+discarded
				}
			})
			db.Exec(t, `delete from outbox_event where key in ('k4', 'k5', 'k6') and payload = '0'`)
			if err := answered(); err != nil {
				t.Fatal(err)
			}
			if settled == 0 || gone != 3 {
				t.Errorf("%d of %d settled events were missing, want 3", gone, settled)
			}
		})
	}
}
