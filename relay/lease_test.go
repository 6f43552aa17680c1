package relay_test

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// lanesOf returns the number of lanes that a driven relay believes to own, and the sum of their fences.
func lanesOf(d *relay.Driver) (n int, fences int64) {
	lanes, _, _ := d.Floors()
	for _, f := range d.Fences(lanes) {
		fences += f
	}
	return len(lanes), fences
}

// TestP5Lease: a relay's lease is one row. Heartbeats do not write lanes, and a take-over and a heartbeat exclude each
// other.
func TestP5Lease(t *testing.T) {
	t.Parallel()
	lapse := `update relay_member set lease_until = now() - interval '1 s'`
	old := `update outbox_lane set lease_until = now() - interval '1 s'` // as if they were taken long ago
	another := func(t *testing.T, f *floors) *relay.Driver {
		t.Helper()
		d, err := relay.Drive(t.Context(), newRelay(t, f.db, &memory{},
			config(func(c *relay.Config) { c.Lease = time.Hour })))
		f.must(err)
		t.Cleanup(d.Close)
		return d
	}
	t.Run("a heartbeat writes no lane", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		f.db.Exec(t, old)
		const versions = `select string_agg(ctid::text, ' ' order by lane) from outbox_lane`
		before := pgtest.One[string](t, f.db, versions)
		n, fences := lanesOf(f.Driver)
		f.must(f.Beat(t.Context()))
		if after := pgtest.One[string](t, f.db, versions); after != before {
			t.Errorf("lanes were written: %s, then %s", before, after)
		}
		if m, again := lanesOf(f.Driver); m != n || m != relay.Lanes || again != fences {
			t.Errorf("%d lanes with fences of %d in sum, then %d with %d", n, fences, m, again)
		}
	})
	t.Run("a live relay keeps its lanes", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		f.db.Exec(t, old)
		other := another(t, f)
		f.must(other.Beat(t.Context()))
		if n, _ := lanesOf(other); n != 0 {
			t.Errorf("another relay took %d lanes", n)
		}
	})
	t.Run("an unfinished heartbeat keeps an expired lease", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		f.db.Exec(t, old)
		f.db.Exec(t, lapse)
		beating := f.begin(f.db, `select from relay_member for update`)
		other := another(t, f)
		if n, _ := lanesOf(other); n != 0 {
			t.Errorf("another relay took %d lanes during the heartbeat of their owner", n)
		}
		f.exec(beating, "rollback")
		f.db.Exec(t, makeCounted)
		f.must(other.Beat(t.Context()))
		if n, _ := lanesOf(other); n != relay.Lanes/2 {
			t.Errorf("another relay took %d lanes after the lease had expired, want half", n)
		}
		f.must(f.Beat(t.Context()))
		if n, _ := lanesOf(f.Driver); n != relay.Lanes/2 {
			t.Errorf("the first relay believes to own %d lanes, want the other half", n)
		}
	})
	t.Run("a take-over raises the fence", func(t *testing.T) {
		t.Parallel()
		f := driven(t, outboxDB(t))
		f.db.Exec(t, old)
		f.db.Exec(t, lapse)
		_, before := lanesOf(f.Driver)
		n, _ := lanesOf(another(t, f))
		after := pgtest.One[int64](t, f.db, `select sum(fence)::bigint from outbox_lane`)
		if n == 0 || after != before+int64(n) {
			t.Errorf("another relay took %d lanes, sum of fences %d, then %d: each of them must rise by one", n,
				before, after)
		}
	})
	for name, sql := range map[string]string{
		"its own lease had expired":         lapse,
		"its row is gone":                   `delete from relay_member`,
		"its lease ends later than any can": `update relay_member set lease_until = now() + interval '3 hours'`,
	} {
		t.Run("a fence rises when "+name, func(t *testing.T) {
			t.Parallel()
			f := driven(t, outboxDB(t))
			f.db.Exec(t, old)
			f.db.Exec(t, sql)
			_, before := lanesOf(f.Driver)
			f.must(f.Beat(t.Context()))
			if n, after := lanesOf(f.Driver); n != relay.Lanes || after != before+relay.Lanes {
				t.Errorf("%d lanes, sum of fences %d, before %d: each must rise by one", n, after,
					before)
			}
		})
	}
}

// TestP5_LaneStaysWhileItIsPublished: another relay asks for its share. The first one keeps the lanes that it is
// publishing from until it has settled.
func TestP5_LaneStaysWhileItIsPublished(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	cfg := config(func(c *relay.Config) { c.Lease = time.Hour })
	first, err := relay.Drive(t.Context(), newRelay(t, db, to, cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	fill(t, db, 640, 320)
	lanes := pgtest.One[int](t, db, `select count(distinct lane) from outbox_event`)
	stepped := make(chan error, 1)
	go func() { _, err := first.Step(t.Context()); stepped <- err }()
	<-to.entered
	other, err := relay.Drive(t.Context(), newRelay(t, db, &memory{}, cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	db.Exec(t, makeCounted) // the other relay now counts, and is due half of the lanes
	if err := first.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept := pgtest.One[int](t, db,
		`select count(*) from outbox_claim c join outbox_lane l on l.lane = c.lane where l.owner is not null`)
	if kept != lanes {
		t.Errorf("%d of %d lanes were given away during their publishing", lanes-kept, lanes)
	}
	close(to.gate)
	if err := <-stepped; err != nil {
		t.Error(err)
	}
}

// TestSilentRelayIsFound: a relay that was killed, or hangs, is reported as silent. One that has stopped is not.
func TestSilentRelayIsFound(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t), func(c *relay.Config) { c.Name = "host:7" })
	diagnosed := func() operator.Diagnosis {
		t.Helper()
		d, err := operator.Diagnose(t.Context(), f.db.Pool, f.db.Schema, false)
		f.must(err)
		return d
	}
	if d := diagnosed(); d.Members != 1 || len(d.Silent) != 0 {
		t.Errorf("alive: %d members, silent: %v", d.Members, d.Silent)
	}
	f.db.Exec(t,
		`update relay_member set seen = seen - interval '3 minutes',
			lease_until = clock_timestamp() - interval '2 minutes'`)
	if d := diagnosed(); d.Members != 0 || len(d.Silent) != 1 || d.Silent[0].Name != "host:7" ||
		d.Silent[0].Ago < 3*time.Minute {
		t.Errorf("frozen: %d members, silent: %v", d.Members, d.Silent)
	}
	f.Close()
	if d := diagnosed(); len(d.Silent) != 0 {
		t.Errorf("stopped: silent: %v", d.Silent)
	}
}
