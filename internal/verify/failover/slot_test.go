package failover

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/internal/verify/history"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestFailoverSlot: a standby that keeps the slot of the WAL source is promoted under load. The relay reads on from
// the slot, and nothing from the table, under a new numbering. A synchronous standby loses nothing. An asynchronous one
// that stopped receiving loses what it lacks, and no more; where the primary has readers of the WAL wait for it,
// nothing of that was published.
func TestFailoverSlot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ synchronous, wait bool }{
		"synchronous":                        {true, true},
		"asynchronous":                       {false, false},
		"asynchronous, and the readers wait": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, c.synchronous)
			s.primary.KeepSlots(t, s.standby, "standby")
			if !c.wait {
				s.old.Exec(t, `alter system reset synchronized_standby_slots`)
				s.old.Exec(t, `select pg_reload_conf()`)
			}
			slot, err := operator.SetUpWAL(t.Context(), s.old.Pool, "")
			if err != nil {
				t.Fatal(err)
			}
			r := s.relay("relay", s.proxy.URL(), func(c *relay.Config) {
				c.Source, c.WALHeartbeat = relay.SourceWAL, time.Second
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
			s.await(100)
			p.end(t)
			s.drained()
			if !pgtest.One[bool](t, s.db, `select count(*) = 32 and max(since) = $1 from outbox_streamed`, handedOver) {
				t.Error("lanes were given back to the table")
			}
			r.end(t)
			w.end(t)
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
				t.Errorf("%d numberings, and more is broken than the standby explains", v.Counts.Incarnations)
			}
			if !c.synchronous && (v.Count(history.OKAppendLost) == 0 || c.wait != (v.Count(history.Phantom) == 0)) {
				t.Error("not what was lost is what such a standby loses: the test proves nothing")
			}
		})
	}
}

// fallBehind has the standby receive nothing more, while producers commit and, if that is to be, the relay publishes.
func (s *scene) fallBehind(published bool) {
	s.t.Helper()
	s.db.Exec(s.t, `alter system set primary_conninfo = ''`)
	s.db.Exec(s.t, `select pg_reload_conf()`)
	pgtest.AwaitSQL(s.t, s.old, `select count(*) = 0 from pg_stat_replication where application_name = 'standby'`)
	before := pgtest.One[int](s.t, s.old, `select count(*) from history_effect`)
	s.await(100)
	if published {
		pgtest.AwaitSQL(s.t, s.old, `select count(*) > $1 from history_effect`, before+50)
	}
}
