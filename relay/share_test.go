package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// makeCounted makes all relays older than one heartbeat.
const makeCounted = `update relay_member set joined = joined - interval '1 hour'`

// anotherRelay drives another relay of the same outbox.
func (f *floors) anotherRelay(change ...func(*relay.Config)) *floors {
	return driven(f.t, f.db, change...)
}

func (f *floors) requireLanes(want int, why string) {
	f.t.Helper()
	f.must(f.Beat(f.t.Context()))
	f.must(f.Beat(f.t.Context())) // lanes that the first heartbeat gave back are free for others now
	if n, _ := lanesOf(f.Driver); n != want {
		f.t.Fatalf("a relay owns %d lanes, want %d: %s", n, want, why)
	}
}

// TestP5NewRelayDoesNotCount: a relay that crashes after every start must not take lanes from the others, which would
// have to wait for its lease each time.
func TestP5NewRelayDoesNotCount(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, makeCounted)
	for range 3 {
		crashing := f.anotherRelay()
		f.requireLanes(relay.Lanes, "a relay that has just started does not count")
		crashing.requireLanes(0, "another relay owns the lanes")
	}
	f.db.Exec(t, `delete from relay_member where joined > now() - interval '1 minute'`)
	staying := f.anotherRelay()
	f.db.Exec(t, makeCounted)
	staying.requireLanes(0, "another relay still owns the lanes")
	f.requireLanes(relay.Lanes/2, "the other relay counts after one heartbeat")
	staying.requireLanes(relay.Lanes/2, "the relay counts after one heartbeat")
}

// TestP5FreeLanesGoToCountedRelays: a relay that has just started takes lanes that have been free for the time of a
// heartbeat; it takes others only if there is no other relay.
func TestP5FreeLanesGoToCountedRelays(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, makeCounted)
	other := f.anotherRelay()
	f.db.Exec(t,
		`update outbox_lane set owner = null, fence = fence + 1, lease_until = clock_timestamp() where lane < 8`)
	other.requireLanes(0, "counted relays come first")
	f.db.Exec(t, `update outbox_lane set lease_until = lease_until - interval '20 minutes' where owner is null`)
	other.requireLanes(8, "these lanes have been free for the time of a heartbeat")
	f.Close()
	other.requireLanes(relay.Lanes, "there is no other relay")
}

// TestP5HeartbeatInFutureDoesNotCount: the database's clock was set back, and the last heartbeat of a dead relay is now
// in the future.
func TestP5HeartbeatInFutureDoesNotCount(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t,
		`insert into relay_member (owner, joined, seen) values (gen_random_uuid(), now(), now() + interval '3 hours')`)
	f.requireLanes(relay.Lanes, "the other relay's heartbeat is in the future")
}

// unreachablePublisher is a publisher whose Reach fails while it is set.
type unreachablePublisher struct {
	memory
	asked   atomic.Int64
	reaches atomic.Bool
}

func (d *unreachablePublisher) Reach(context.Context) error {
	d.asked.Add(1)
	if d.reaches.Load() {
		return nil
	}
	return errors.New("no broker answers")
}

// TestP5RelayWithoutKafkaTakesNoLanes: a relay takes no lanes from others while it does not reach its publisher.
func TestP5RelayWithoutKafkaTakesNoLanes(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases")
	}
	t.Parallel()
	db := outboxDB(t)
	// Long enough for a busy machine, short enough for the deaf relay to count, were it not deaf.
	named := func(name string) relay.Config {
		return config(func(c *relay.Config) { c.Name, c.Lease = name, 6*time.Second })
	}
	startRelay(t, newRelay(t, db, &memory{}, named("well")))
	pgtest.AwaitSQL(t, db, `select count(owner) = $1 from outbox_lane`, relay.Lanes)
	db.Exec(t, makeCounted)
	to := &unreachablePublisher{}
	startRelay(t, newRelay(t, db, to, named("deaf")))
	const its = `select count(*) from outbox_lane l join relay_member m on m.owner = l.owner where m.name = 'deaf'`
	pgtest.Await(t, "heartbeats of a relay without Kafka", func() (bool, error) {
		if n := pgtest.One[int](t, db, its); n > 0 {
			t.Fatalf("a relay without Kafka owns %d lanes", n)
		}
		return to.asked.Load() > 10, nil
	})
	to.reaches.Store(true)
	pgtest.AwaitSQL(t, db, `select ($1 = (`+its+`))`, relay.Lanes/2)
}

// TestP5LaneChangesAreLogged: the observer is told of every lane that is taken or left, and each change is one log
// line. A relay that takes over lanes logs their former owner.
func TestP5LaneChangesAreLogged(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	owned := map[int16]int{}
	f := driven(t, outboxDB(t), func(c *relay.Config) {
		c.Name, c.Logger = "first", slog.New(slog.NewTextHandler(&said, nil))
		c.Observer.LaneTaken = func(lane int16, _ int64) { owned[lane]++ }
		c.Observer.LaneLeft = func(lane int16, _ bool) { owned[lane]-- }
	})
	reported := func(want int, why string) {
		t.Helper()
		n := 0
		for lane, times := range owned {
			if n += times; times < 0 || times > 1 {
				t.Fatalf("lane %d is owned %d times: %s", lane, times, why)
			}
		}
		if n != want {
			t.Errorf("%d lanes were reported, want %d: %s", n, want, why)
		}
	}
	reported(relay.Lanes, "all of them are taken")
	const lapse = `update relay_member set lease_until = now() - interval '1 s' where name = $1`
	const old = `update outbox_lane set lease_until = now() - interval '1 s'`
	f.db.Exec(t, old)
	f.db.Exec(t, lapse, "first")
	f.must(f.Beat(t.Context()))
	reported(relay.Lanes, "their fences have risen")
	f.db.Exec(t, old)
	f.db.Exec(t, lapse, "first")
	other := f.anotherRelay(func(c *relay.Config) {
		c.Name, c.Logger = "other", slog.New(slog.NewTextHandler(&said, nil))
	})
	f.must(f.Beat(t.Context()))
	reported(0, "another relay has taken them")
	if text := said.String(); strings.Count(text, "lanes were lost") != 1 || strings.Count(text, "taken over") != 1 ||
		!strings.Contains(text, "count=32") || !strings.Contains(text, "from=[first]") {
		t.Errorf("logged:\n%s", text)
	}
	other.Close()
	f.must(f.Beat(t.Context()))
	reported(relay.Lanes, "they are free")
	f.Close()
	reported(0, "it has ended")
}
