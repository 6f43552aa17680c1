package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// drivenExcepting is driven, with floors that except open transactions.
func drivenExcepting(t *testing.T) *floors {
	t.Helper()
	f := driven(t, outboxDB(t))
	relay.SetExceptFrom(f.Relay(), 0)
	return f
}

// TestP6FloorPassesAnOpenTransaction: a producer has appended and keeps its transaction open. Floors rise past it, and
// its events are still published when it commits.
func TestP6FloorPassesAnOpenTransaction(t *testing.T) {
	t.Parallel()
	const second = `insert into outbox_event (topic, key, type, payload) values ('payments', 'slow', 'T', '1')`
	t.Run("probes stay flat", func(t *testing.T) {
		t.Parallel()
		f := drivenExcepting(t)
		f.begin(f.db, insertOne)
		fill(t, f.db, 20_000, 200)
		f.drain()
		f.riseFully()
		f.at(20_001, "the transaction is excepted")
		lanes, found, ids := f.Floors()
		zero, owner := make([]int64, len(lanes)),
			pgtest.One[string](t, f.db, `select min(owner::text) from outbox_lane`)
		if n := f.pages("probe", lanes, "3 s", found, ids, []int16{}); n > 100 {
			t.Errorf("a probe reads %d pages", n)
		}
		if n := f.pages("take", lanes, f.Fences(lanes), owner, zero, 250, 1<<20, 512, 1<<20, found, ids,
			upperBounds(lanes)); n > 1000 {
			t.Errorf("a claim reads %d pages", n)
		}
		fill(t, f.db, 10, 10)
		f.drain()
		f.riseFully()
		f.at(20_011, "floors rise further")
		if n := f.to.count(); n != 20_010 {
			t.Errorf("%d events published", n)
		}
	})
	t.Run("it commits, and an event that it caused follows", func(t *testing.T) {
		t.Parallel()
		f := drivenExcepting(t)
		slow := f.begin(f.db, insertOne)
		fill(t, f.db, 100, 10)
		f.drain()
		f.riseFully()
		f.at(101, "the transaction is excepted")
		f.exec(slow, "commit")
		f.db.Exec(t, second)
		f.step() // before the floors have fallen
		if n := f.to.count(); n != 100 {
			t.Errorf("%d events published: invalid floors were used", n)
		}
		f.must(f.FloorStep(t.Context()))
		if n := relay.LowestFloor(f.Relay()); n != 0 {
			t.Errorf("the lowest floor is %d: the transaction's event is below it", n)
		}
		f.drain()
		var payloads string
		for _, e := range f.to.events() {
			if e.Key == "slow" {
				payloads += string(e.Payload)
			}
		}
		if payloads != "01" {
			t.Errorf("the key's events are published as %q", payloads)
		}
		f.riseFully()
		f.at(102, "no transaction is open")
	})
	t.Run("it rolls back", func(t *testing.T) {
		t.Parallel()
		f := drivenExcepting(t)
		slow := f.begin(f.db, insertOne)
		fill(t, f.db, 100, 10)
		f.drain()
		f.riseFully()
		f.exec(slow, "rollback")
		f.must(f.FloorStep(t.Context()))
		f.at(101, "its row never existed")
		f.riseFully()
		fill(t, f.db, 10, 10)
		f.drain()
		if n := f.to.count(); n != 110 {
			t.Errorf("%d events published, want 110", n)
		}
	})
	t.Run("others open before it commits", func(t *testing.T) {
		t.Parallel()
		f := drivenExcepting(t)
		slow := f.begin(f.db, insertOne)
		for n := range 4 {
			fill(t, f.db, 100, 10)
			f.drain()
			f.riseFully()
			// It falls to here when the transaction commits.
			if fall := relay.SureFloor(f.Relay()); fall != max(0, int64(n)*201-100) {
				t.Errorf("the highest floor without exceptions is %d after %d commits", fall, n)
			}
			next := f.begin(f.db, insertOne)
			fill(t, f.db, 100, 10)
			f.drain()
			f.riseFully()
			f.exec(slow, "commit")
			f.must(f.FloorStep(t.Context()))
			f.drain()
			slow = next
		}
		if n := f.to.count(); n != 804 {
			t.Errorf("%d events published, want 804", n)
		}
	})
	t.Run("it is prepared, then commits", func(t *testing.T) {
		t.Parallel()
		f := drivenExcepting(t)
		slow := f.begin(f.db, "savepoint s", insertOne, "release savepoint s", "savepoint s")
		fill(t, f.db, 100, 10)
		f.drain()
		f.riseFully()
		f.at(101, "the transaction is excepted")
		f.exec(slow, "prepare transaction '"+f.db.Schema+"'")
		t.Cleanup(func() { _, _ = slow.Exec(context.Background(), "rollback prepared '"+f.db.Schema+"'") })
		fill(t, f.db, 100, 10)
		f.drain()
		f.riseFully()
		f.at(201, "the transaction is still excepted, under another name")
		f.exec(slow, "commit prepared '"+f.db.Schema+"'")
		f.must(f.FloorStep(t.Context()))
		f.drain()
		if n := f.to.count(); n != 201 {
			t.Errorf("%d events published, want 201", n)
		}
	})
	t.Run("floors wait for one without an id", func(t *testing.T) {
		t.Parallel()
		f := drivenExcepting(t)
		slow := f.begin(f.db, `insert into outbox_event (topic, key, type) select 't', 'k', 'T' where false`)
		fill(t, f.db, 100, 10)
		f.drain()
		f.riseFully()
		f.at(0, "a snapshot cannot tell whether its rows are visible")
		f.exec(slow, "commit")
		f.riseFully()
		f.at(100, "it has ended")
	})
}

// TestP6FloorsRiseInSlices: a relay starts above many dead rows, and no statement reads all of them. Events behind them
// are found when the floors have risen that far. If a slice takes too long, floors keep the height that they have.
func TestP6FloorsRiseInSlices(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	before := driven(t, db)
	pin := before.begin(db, `set transaction isolation level repeatable read`, `select count(*) from outbox_lane`)
	fill(t, db, 2000, 200)
	before.drain()
	before.Close()

	// A slice waits for a lock for a ninth of the lease.
	f := driven(t, db, func(c *relay.Config) { c.Lease = 9 * time.Second })
	f.InSlices(100, 50)
	f.db.Exec(t, insertOne)
	f.must(f.Beat(t.Context()))
	f.step()
	if n := f.to.count(); n != 0 {
		t.Fatalf("%d events published: the claim read beyond its bound", n)
	}
	for _, height := range []int64{0, 50} {
		f.must(f.FloorStep(t.Context()))
		f.at(height, "one slice of 50 ids was read")
	}
	if f.Lagging() == 0 {
		t.Error("no lane's floor is still rising")
	}
	// A slice waits for a lock until its statement times out.
	lock := f.begin(db, `lock table outbox_event in access exclusive mode`)
	var refused *pgconn.PgError
	if err := f.FloorStep(t.Context()); !errors.As(err, &refused) || refused.Code != "55P03" {
		t.Fatalf("a slice that waits for a lock: %v", err)
	}
	f.exec(lock, "rollback")
	f.must(f.FloorStep(t.Context()))
	if n := relay.LowestFloor(f.Relay()); n <= 50 {
		t.Errorf("the lowest floor is %d: floors fell after a slow statement", n)
	}
	for f.Lagging() > 0 {
		f.must(f.FloorStep(t.Context()))
	}
	f.must(f.Beat(t.Context()))
	f.drain()
	if n := f.to.count(); n != 1 {
		t.Errorf("%d events published, want 1", n)
	}
	f.exec(pin, "commit")
}

// TestP6OnlyFullSlicesGrow: steps that only follow new ids do not make the slices larger. A slice that takes too long
// is tried again with fewer ids, and is not an outage.
func TestP6OnlyFullSlicesGrow(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	for range 10 {
		fill(t, f.db, 10, 10)
		f.drain()
		f.riseFully()
	}
	if f.at(100, "everything is published"); f.Slice() > 1<<16 {
		t.Errorf("the next slice has %d ids", f.Slice())
	}
	was := f.Slice()
	f.db.Exec(t, insertOne)
	f.db.Exec(t, `alter table outbox_event rename to outbox_event_rows`)
	f.db.Exec(t, `create view outbox_event as select e.* from outbox_event_rows e, pg_sleep(600)`)
	reached := make(chan error, 1)
	go func() { reached <- f.Reach(t.Context(), 1000) }()
	const sleeps = `select exists (select from pg_stat_activity where pid = $1 and wait_event = 'PgSleep')`
	pgtest.AwaitSQL(t, f.db, sleeps, f.ProberPID())
	f.db.Exec(t, `select pg_cancel_backend($1)`, f.ProberPID()) // as its time-out would
	f.must(<-reached)
	if f.Slice() >= was {
		t.Errorf("a slice of %d ids took too long, and the next has %d", was, f.Slice())
	}
}

// TestP6RescanRunsInSlices: a rescan does not read all rows below the floors at once, either.
func TestP6RescanRunsInSlices(t *testing.T) {
	t.Parallel()
	var found []int16
	f := driven(t, outboxDB(t), func(c *relay.Config) {
		c.Observer.BelowFloor = func(lane int16) {
			found = append(found, lane)
		}
	})
	fill(t, f.db, 1000, 10)
	f.drain()
	f.riseFully()
	f.at(1000, "everything is published")
	f.db.Exec(t,
		`insert into outbox_event (id, topic, key, type, payload) overriding system value values (900, 'payments', 'k1',
				'T', '10')`)
	f.InSlices(1<<40, 1)
	slices := 0
	for len(found) == 0 {
		if slices++; slices > 1000 {
			t.Fatal("the row was not found")
		}
		f.must(f.RescanSlice(t.Context()))
	}
	if slices < 3 {
		t.Errorf("the row was found by slice %d; slices have 1, 2, 4 ... ids", slices)
	}
}
