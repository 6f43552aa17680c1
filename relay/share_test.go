package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// age makes relays those that have been there for longer than a heartbeat's time.
const age = `update relay_member set joined = joined - interval '1 hour'`

// beside starts another driven relay.
func (f *floors) beside(change ...func(*relay.Config)) *floors { return driven(f.t, f.db, change...) }

func (f *floors) owns(want int, why string) {
	f.t.Helper()
	f.must(f.Beat(f.t.Context()))
	f.must(f.Beat(f.t.Context())) // what it gave back in the first is free for the others
	if n, _ := lanesOf(f.Driver); n != want {
		f.t.Fatalf("a relay owns %d lanes, want %d: %s", n, want, why)
	}
}

// TestP5NewRelayDoesNotCount: a relay that crashes whenever it has started must not take lanes from the
// others each time, which have to wait for its lease then.
func TestP5NewRelayDoesNotCount(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, age)
	for range 3 {
		crashing := f.beside()
		f.owns(relay.Lanes, "a relay that has just started does not count")
		crashing.owns(0, "the lanes are another's")
	}
	f.db.Exec(t, `delete from relay_member where joined > now() - interval '1 minute'`)
	staying := f.beside()
	f.db.Exec(t, age)
	staying.owns(0, "the lanes are another's still")
	f.owns(relay.Lanes/2, "the other one has been there for a heartbeat's time")
	staying.owns(relay.Lanes/2, "it has been there for a heartbeat's time")
}

// TestP5FreeLanesGoToCountedRelays: who has just started takes what was free for a heartbeat's time, and before only
// when there is nobody else.
func TestP5FreeLanesGoToCountedRelays(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, age)
	other := f.beside()
	f.db.Exec(t,
		`update outbox_lane set owner = null, fence = fence + 1, lease_until = clock_timestamp() where lane < 8`)
	other.owns(0, "those that count come first")
	f.db.Exec(t, `update outbox_lane set lease_until = lease_until - interval '20 minutes' where owner is null`)
	other.owns(8, "they were free for a heartbeat's time")
	f.Close()
	other.owns(relay.Lanes, "there is nobody else")
}

// TestP5HeartbeatInFutureDoesNotCount: the database's clock went back, and a relay that died before has a heartbeat
// that is to come.
func TestP5HeartbeatInFutureDoesNotCount(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t,
		`insert into relay_member (owner, joined, seen) values (gen_random_uuid(), now(), now() + interval '3 hours')`)
	f.owns(relay.Lanes, "the other one's heartbeat is in the future")
}

// deaf is a publisher that reaches nothing while it is told so.
type deaf struct {
	memory
	asked   atomic.Int64
	reaches atomic.Bool
}

func (d *deaf) Reach(context.Context) error {
	d.asked.Add(1)
	if d.reaches.Load() {
		return nil
	}
	return errors.New("nothing answers")
}

// TestP5RelayWithoutKafkaTakesNoLanes: it gets no lanes from others until it reaches what it publishes to.
func TestP5RelayWithoutKafkaTakesNoLanes(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases")
	}
	t.Parallel()
	db := outboxDB(t)
	running(t, newRelay(t, db, &memory{}, config(func(c *relay.Config) { c.Name = "well" })))
	pgtest.AwaitSQL(t, db,
		`select count(owner) = $1 and exists (select from relay_member where seen >= joined + interval '1 s')
			from outbox_lane`, relay.Lanes)
	to := &deaf{}
	running(t, newRelay(t, db, to, config(func(c *relay.Config) { c.Name = "deaf" })))
	const its = `select count(*) from outbox_lane l join relay_member m on m.owner = l.owner where m.name = 'deaf'`
	pgtest.Await(t, "heartbeats of a relay that reaches nothing", func() (bool, error) {
		if n := pgtest.One[int](t, db, its); n > 0 {
			t.Fatalf("a relay that reaches nothing owns %d lanes", n)
		}
		return to.asked.Load() > 10, nil
	})
	to.reaches.Store(true)
	pgtest.AwaitSQL(t, db, `select ($1 = (`+its+`))`, relay.Lanes/2)
}

// TestP5LaneChangesAreLogged: lanes that are taken and left are told of alike, whatever becomes of them, and in one
// line each time. Who takes lanes from a relay that is gone says from whom.
func TestP5LaneChangesAreLogged(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	owned := map[int16]int{}
	f := driven(t, outboxDB(t), func(c *relay.Config) {
		c.Name, c.Logger = "first", slog.New(slog.NewTextHandler(&said, nil))
		c.Observer.LaneTaken = func(lane int16, _ int64) { owned[lane]++ }
		c.Observer.LaneLeft = func(lane int16, _ bool) { owned[lane]-- }
	})
	told := func(want int, why string) {
		t.Helper()
		n := 0
		for lane, times := range owned {
			if n += times; times < 0 || times > 1 {
				t.Fatalf("lane %d is owned %d times: %s", lane, times, why)
			}
		}
		if n != want {
			t.Errorf("%d lanes are told of, want %d: %s", n, want, why)
		}
	}
	told(relay.Lanes, "all of them are taken")
	const lapse = `update relay_member set lease_until = now() - interval '1 s' where name = $1`
	const old = `update outbox_lane set lease_until = now() - interval '1 s'`
	f.db.Exec(t, old)
	f.db.Exec(t, lapse, "first")
	f.must(f.Beat(t.Context()))
	told(relay.Lanes, "their fences have risen")
	f.db.Exec(t, old)
	f.db.Exec(t, lapse, "first")
	other := f.beside(func(c *relay.Config) { c.Name, c.Logger = "other", slog.New(slog.NewTextHandler(&said, nil)) })
	f.must(f.Beat(t.Context()))
	told(0, "another relay has taken them")
	if text := said.String(); strings.Count(text, "lanes were lost") != 1 || strings.Count(text, "taken over") != 1 ||
		!strings.Contains(text, "count=32") || !strings.Contains(text, "from=[first]") {
		t.Errorf("said:\n%s", text)
	}
	other.Close()
	f.must(f.Beat(t.Context()))
	told(relay.Lanes, "they are free")
	f.Close()
	told(0, "it has ended")
}
