package failover

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/verify/history"
)

// TestFailoverSlot promotes a standby with a synchronised slot of the WAL feed, under load. The relay goes on from
// the slot, not from the table, under a new numbering. A synchronous standby loses nothing. An asynchronous one that
// stopped receiving loses only the events that it lacks; if the primary makes WAL readers wait for it, none of these
// was published.
func TestFailoverSlot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ synchronous, wait bool }{
		"synchronous":                {true, true},
		"asynchronous":               {false, false},
		"asynchronous, readers wait": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.RequireFailoverSlots(t)
			s := newTestbed(t, c.synchronous)
			s.primary.KeepSlots(t, s.standby, "standby")
			if !c.wait {
				s.old.Exec(t, `alter system reset synchronized_standby_slots`)
				s.old.Exec(t, `select pg_reload_conf()`)
			}
			slot, err := operator.SetUpWAL(t.Context(), s.old.Pool, "")
			if err != nil {
				t.Fatal(err)
			}
			// Lanes go back to the table when the WAL was unreadable for longer than a lease, and when a partition of
			// Kafka keeps its events waiting: a busy machine does neither within these times.
			r := s.relay("relay", s.proxy.URL(), func(c *relay.Config) {
				c.Feed, c.WALHeartbeat = relay.FeedWAL, time.Second
				c.Lease, c.HoldAfter = time.Minute, time.Hour
			})
			pgtest.AwaitSQL(t, s.old, `select count(*) = 32 from outbox_streamed`)
			p, w := s.producer("producer", s.proxy.URL()), s.worker("worker", s.proxy.URL())
			s.standby.AwaitSynced(t, s.primary, slot)
			pgtest.AwaitSQL(t, s.old, `select count(*) > 100 from history_effect`)
			handedOver := pgtest.One[time.Time](t, s.old, `select max(since) from outbox_streamed`)
			if !c.synchronous {
				s.fallBehind(!c.wait)
			}
			s.primary.Kill()
			s.promote()
			s.awaitPayments(100)
			p.stopAndWait(t)
			s.awaitDrained()
			if !pgtest.One[bool](t, s.db, `select count(*) = 32 and max(since) = $1 from outbox_streamed`, handedOver) {
				t.Error("lanes went back to the table")
			}
			r.stopAndWait(t)
			w.stopAndWait(t)
			const lost = "the standby was asynchronous"
			allowed := map[history.Name]string{}
			if !c.synchronous {
				for _, name := range []history.Name{
					history.OKAppendLost, history.DedupForgotten, history.FenceWentBack, history.FenceShared,
				} {
					allowed[name] = lost
				}
			}
			if !c.wait {
				allowed[history.Phantom], allowed[history.PhantomEffect] = lost, lost
			}
			v := s.verdict(allowed)
			t.Log(v)
			t.Logf("committed appends lost: %d; records of events that no database knows: %d; published again: %d",
				v.Count(history.OKAppendLost), v.Count(history.Phantom), v.Counts.FirstAgain)
			if !v.OK() || v.Counts.Incarnations != 2 {
				t.Errorf("%d numberings, or violations that the standby does not explain", v.Counts.Incarnations)
			}
			if !c.synchronous && (v.Count(history.OKAppendLost) == 0 || c.wait != (v.Count(history.Phantom) == 0)) {
				t.Error("the losses are not those of such a standby, so the test proves nothing")
			}
		})
	}
}

// fallBehind stops replication to the standby while producers commit and, if published, the relay publishes.
func (s *testbed) fallBehind(published bool) {
	s.t.Helper()
	s.db.Exec(s.t, `alter system set primary_conninfo = ''`)
	s.db.Exec(s.t, `select pg_reload_conf()`)
	pgtest.AwaitSQL(s.t, s.old, `select count(*) = 0 from pg_stat_replication where application_name = 'standby'`)
	before := s.payments.Load()
	s.awaitPayments(100)
	if published { // more than what was appended before: some of these the standby does not have
		pgtest.AwaitSQL(s.t, s.old, `select count(*) > $1 from history_effect`, before+50)
	}
}
