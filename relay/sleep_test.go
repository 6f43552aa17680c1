package relay_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

func sleeping(d time.Duration) func(c *relay.Config) {
	return func(c *relay.Config) { c.Sleep, c.IdleAfter = d, 100*time.Millisecond }
}

// shortLease is the lease of relays whose heartbeats a test waits for.
func shortLease(c *relay.Config) { c.Lease = 3 * time.Second }

func awaitAsleep(t *testing.T, r *relay.Relay) {
	t.Helper()
	pgtest.Await(t, "a relay that sleeps", func() (bool, error) { return r.Asleep(), nil })
}

// TestP7Sleep: a sleeping relay has neither lanes nor a row in relay_member, and sends no statement in the time of
// three heartbeats, whatever is appended. When it is woken it publishes all events in order, and sleeps again.
func TestP7Sleep(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	proxy, statements := pgtest.NewProxy(t, db.URL), atomic.Int64{}
	proxy.Watch(func(pgtest.Passing) *pgtest.Trap { statements.Add(1); return nil })
	r, err := relay.New(poolAt(t, proxy.URL()), to, config(sleeping(time.Hour), shortLease))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, r)
	for round := range 2 {
		awaitAsleep(t, r)
		if !pgtest.One[bool](t, db, `select not exists (select from relay_member)
			and not exists (select from outbox_lane where owner is not null)`) {
			t.Fatal("a sleeping relay has lanes")
		}
		before, since := statements.Load(), time.Now()
		if before == 0 {
			t.Fatal("no statement was counted")
		}
		fillFrom(t, db, 10*round, 10)
		pgtest.Await(t, "three heartbeats", func() (bool, error) { return time.Since(since) > 3*time.Second, nil })
		if n := statements.Load() - before; n > 0 || to.count() != 200*round {
			t.Fatalf("%d statements while it slept; %d events published", n, to.count())
		}
		r.Wake()
		awaitDrained(t, db)
	}
	awaitAsleep(t, r)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if again := checkOrder(t, to.events(), 400); again > 0 {
		t.Errorf("%d events were published twice", again)
	}
}

// TestCheckIsAskedFirst: a relay that has slept takes no lane before Config.Check has allowed it, and ends if it does
// not.
func TestCheckIsAskedFirst(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	restored := errors.New("the outbox was restored")
	verdicts := make(chan error)
	r := newRelay(t, db, to, config(sleeping(time.Hour), func(c *relay.Config) {
		c.Check = func(ctx context.Context) (string, error) {
			select {
			case err := <-verdicts:
				return "", err
			case <-ctx.Done():
				return "", nil
			}
		}
	}))
	stop := startRelay(t, r)
	verdicts <- nil
	awaitAsleep(t, r)
	fill(t, db, 1, 1)
	r.Wake()
	verdicts <- nil
	awaitDrained(t, db)
	awaitAsleep(t, r)
	fill(t, db, 1, 1)
	r.Wake()
	verdicts <- restored
	if err := stop(); !errors.Is(err, restored) {
		t.Errorf("Run returned %v", err)
	}
	if n := to.count(); n != 1 {
		t.Errorf("%d events were published, want the first", n)
	}
}

// TestP7SleepEnds: a sleeping relay probes when its time is over, and when a scheduled event is due, without a Wake.
func TestP7SleepEnds(t *testing.T) {
	t.Parallel()
	for name, sleep := range map[string]time.Duration{"time": time.Second, "due": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			if sleep == time.Hour {
				db.Exec(t, `insert into outbox_scheduled (topic, key, type, payload, due)
					values ('payments', 'k', 'T', '0', now() + interval '6 seconds')`)
			}
			// It does not sleep when an event is due within a lease.
			r := newRelay(t, db, to, config(sleeping(sleep), shortLease))
			startRelay(t, r)
			awaitAsleep(t, r)
			if sleep < time.Hour {
				fill(t, db, 1, 1)
			}
			pgtest.Await(t, "the event", func() (bool, error) { return to.count() == 1, nil })
			awaitAsleep(t, r)
		})
	}
}

// TestP7SleepWhileAnotherRelayRuns: when one of two relays sleeps, the other sees that it has left, and owns all lanes.
func TestP7SleepWhileAnotherRelayRuns(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	startRelay(t, newRelay(t, db, to, config()))
	// A relay that is alone sleeps at once, before another has joined. Beside the owner of all lanes it waits for its
	// share.
	pgtest.AwaitSQL(t, db, `select count(owner) = 32 from outbox_lane`)
	r := newRelay(t, db, to, config(sleeping(time.Hour)))
	startRelay(t, r)
	pgtest.AwaitSQL(t, db, `select count(*) = 2 from relay_member`)
	db.Exec(t, makeCounted)
	awaitAsleep(t, r)
	pgtest.AwaitSQL(t, db, `select count(distinct owner) = 1 and count(owner) = 32 from outbox_lane`)
	fill(t, db, 100, 10)
	awaitDrained(t, db)
	if !r.Asleep() {
		t.Error("the relay was woken")
	}
	checkOrder(t, to.events(), 100)
}
