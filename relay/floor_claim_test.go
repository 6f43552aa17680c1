package relay_test

import (
	"context"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// ackHook is a publisher that runs a function once, before it acks.
type ackHook struct {
	memory
	do func()
}

func (b *ackHook) Publish(ctx context.Context, events []event.Event) []error {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.memory.Publish(ctx, events)
}

func drivenWithHook(t *testing.T) (*floors, *ackHook) {
	t.Helper()
	db, to := outboxDB(t), &ackHook{}
	d, err := relay.Drive(t.Context(), newRelay(t, db, to, config(func(c *relay.Config) {
		c.FloorEvery, c.RescanEvery, c.Lease = 1, -1, 3600e9
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return &floors{Driver: d, t: t, db: db, to: &to.memory}, to
}

// TestP6FloorFollowsClaims: a settled claim raises its lane's floor to its last id, without a step of the floor. It
// does so only as far as all ids were decided when the claim read, and only if floors have not fallen since.
func TestP6FloorFollowsClaims(t *testing.T) {
	t.Parallel()
	t.Run("to the last id", func(t *testing.T) {
		t.Parallel()
		for name, bulkFrom := range map[string]int{"one by one": 1 << 30, "in bulk": 1} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f, r := drivenInBulk(t, outboxDB(t))
				relay.SetBulkFrom(r, bulkFrom)
				fill(t, f.db, 2000, 500)
				f.db.Exec(t, `create table filled as select lane, id from outbox_event`)
				f.step() // reads the journal, and has no floors yet
				f.riseFully()
				for range 3 {
					f.step()
					lanes, found, _ := f.Floors()
					if n := pgtest.One[int](t, f.db,
						`select count(*) from unnest($1::smallint[], $2::bigint[]) f (lane, floor)
						join filled a on a.lane = f.lane left join outbox_event e on e.lane = a.lane and e.id = a.id
						where (a.id <= f.floor) <> (e.id is null)`, lanes, found); n > 0 {
						t.Errorf("%d events are below a floor but not settled, or settled but not below one", n)
					}
				}
				f.drain()
				checkOrder(t, f.to.events(), 2000)
			})
		}
	})
	t.Run("not over an id that was drawn before the claim and commits after it", func(t *testing.T) {
		t.Parallel()
		f, to := drivenWithHook(t)
		slow := f.begin(f.db, insertOne)
		f.step()
		f.riseFully()
		f.db.Exec(t, insertOne) // of the same lane
		to.do = func() {
			f.exec(slow, "commit")
			for range 4 { // all ids are decided now
				f.must(f.FloorStep(t.Context()))
			}
		}
		f.step()
		f.drain()
		if n := f.to.count(); n != 2 {
			t.Errorf("%d events published, want 2: the late one is below the floor", n)
		}
	})
	t.Run("not when the connection was lost since", func(t *testing.T) {
		t.Parallel()
		f, to := drivenWithHook(t)
		f.step()
		fill(t, f.db, 100, 10)
		f.riseFully()
		to.do = func() {
			terminate(t, f.db, f.ProberPID())
			_ = f.FloorStep(t.Context()) // fails, for its connection has ended
			f.must(f.FloorStep(t.Context()))
		}
		f.step()
		f.at(0, "the new connection may lead to another server")
	})
}

func (f *floors) step() {
	f.t.Helper()
	_, err := f.Step(f.t.Context())
	f.must(err)
}
