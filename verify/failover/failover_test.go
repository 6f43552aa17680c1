package failover

import (
	"errors"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/verify/history"
)

const newNumbering = "another system or timeline"

// TestSynchronous: with a synchronous standby a failover under load loses no event, repeats no effect and keeps the
// order. No process is restarted: all connections are cut, and reach the new primary at the old address.
func TestSynchronous(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, true)
	producers := []*task{s.producer("producer-1", s.proxy.URL()), s.producer("producer-2", s.proxy.URL())}
	r, w := s.relay("relay", s.proxy.URL()), s.worker("worker", s.proxy.URL())
	pgtest.AwaitSQL(t, s.old, `select count(*) > 100 from history_effect`)
	s.awaitPayments(100)
	s.primary.Kill()
	s.promote()
	s.awaitPayments(200)
	for _, p := range producers {
		p.stopAndWait(t)
	}
	s.awaitDrained()
	r.stopAndWait(t)
	w.stopAndWait(t)
	v := s.verdict(nil)
	t.Log(v)
	if !v.OK() {
		t.Error("the failover to a synchronous standby violated an invariant")
	}
	if v.Counts.Incarnations != 2 || !strings.Contains(s.log.String(), newNumbering) {
		t.Errorf("%d numberings in the topic; log of the relay: %s", v.Counts.Incarnations, s.log.String())
	}
}

// TestAsynchronous: events that an asynchronous standby had not received are lost, and the test counts them. For all
// others order and single effects hold.
func TestAsynchronous(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, false)
	p, r, w := s.producer("producer", s.proxy.URL()), s.relay("relay", s.proxy.URL()), s.worker("worker", s.proxy.URL())
	pgtest.AwaitSQL(t, s.old, `select count(*) > 50 from history_effect`)
	// The standby stops receiving.
	s.db.Exec(t, `alter system set primary_conninfo = ''`)
	s.db.Exec(t, `select pg_reload_conf()`)
	pgtest.AwaitSQL(t, s.old, `select count(*) = 0 from pg_stat_replication`)
	before := s.payments.Load()
	s.awaitPayments(100)
	// More than what was appended before: some of these the standby does not have.
	pgtest.AwaitSQL(t, s.old, `select count(*) > $1 from history_effect`, before+50)
	s.primary.Kill()
	s.promote()
	s.awaitPayments(100)
	p.stopAndWait(t)
	s.awaitDrained()
	r.stopAndWait(t)
	w.stopAndWait(t)
	const lost = "the standby was asynchronous"
	v := s.verdict(map[history.Name]string{
		history.OKAppendLost: lost, history.Phantom: lost, history.PhantomEffect: lost, history.DedupForgotten: lost,
	})
	t.Log(v)
	if !v.OK() {
		t.Error("there are violations that an asynchronous standby does not explain")
	}
	t.Logf("committed appends lost: %d; records of events that no database has: %d; their effects: %d; decisions "+
		"forgotten: %d; records published again: %d",
		v.Count(history.OKAppendLost), v.Count(history.Phantom), v.Count(history.PhantomEffect),
		v.Count(history.DedupForgotten), v.Counts.FirstAgain)
	if v.Count(history.OKAppendLost) == 0 || v.Count(history.Phantom) == 0 {
		t.Error("nothing was lost, so the test proves nothing")
	}
	if !strings.Contains(s.log.String(), newNumbering) {
		t.Errorf("the relay did not log a new numbering: %s", s.log.String())
	}
}

// TestSplitBrain: the old primary goes on running, with a relay and a producer that use its address. Both sides
// publish. No two events have the same number, because the new primary's relay has begun a new numbering. A relay that
// is started again on the old primary is refused.
func TestSplitBrain(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, false)
	p, r, w := s.producer("producer", s.proxy.URL()), s.relay("relay", s.proxy.URL()), s.worker("worker", s.proxy.URL())
	pOld, rOld := s.producer("producer-old", s.old.URL), s.relay("relay-old", s.old.URL)
	pgtest.AwaitSQL(t, s.old, `select count(*) > 50 from history_effect`)
	w.stopAndWait(t)
	s.promote()
	w = s.worker("worker-2", s.proxy.URL())
	pgtest.AwaitSQL(t, s.db, `select incarnation > 1 from outbox_meta`)
	before := pgtest.One[int](t, s.old, `select count(*) from history_business`)
	s.awaitPayments(200)
	pgtest.AwaitSQL(t, s.old, `select count(*) > $1 from history_business`, before+50) // which the new primary lacks
	pgtest.AwaitSQL(t, s.old, `select incarnation = 1 from outbox_meta`)
	pOld.stopAndWait(t)
	pgtest.AwaitSQL(t, s.old, `select not exists (select from outbox_event)`)
	rOld.stopAndWait(t)
	p.stopAndWait(t)
	s.awaitDrained()
	r.stopAndWait(t)
	w.stopAndWait(t)
	const split = "two primaries"
	v := s.verdict(map[history.Name]string{
		history.OKAppendLost: split, history.Phantom: split, history.PhantomEffect: split,
		history.DedupForgotten: split, history.StaleIncarnation: split, history.FenceShared: split,
		history.FenceWentBack: split,
	})
	t.Log(v)
	if !v.OK() {
		t.Error("there are violations that two primaries do not explain")
	}
	if v.Counts.Incarnations != 2 || v.Count(history.Phantom) == 0 {
		t.Errorf("%d numberings, %d records of the old primary only, so the test proves nothing", v.Counts.Incarnations,
			v.Count(history.Phantom))
	}
	// A relay that starts on the old primary finds that the topic is ahead of it.
	var published []event.Event
	for _, rec := range kafkatest.ReadAll(t, s.topic) {
		e := event.Record{Topic: s.topic, Partition: rec.Partition, Offset: rec.Offset, Key: rec.Key, Value: rec.Value}
		for _, h := range rec.Headers {
			e.Headers = append(e.Headers, event.Header{Key: h.Key, Value: h.Value})
		}
		published = append(published, event.Decode(&e, ""))
	}
	var outdated *operator.OutdatedError
	if _, err := operator.CheckNumbers(t.Context(), s.old.Pool, "", published); !errors.As(err, &outdated) ||
		!outdated.Newer {
		t.Errorf("a relay would start on the old primary: %v", err)
	} else {
		t.Log(outdated)
	}
}

// TestP10WorkerRereadsAfterFailover: an asynchronous failover loses effects whose offsets are committed. The worker is
// not restarted, its connections only reach another server. It notices, joins its group again, and starts at the
// database's offset.
func TestP10WorkerRereadsAfterFailover(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, false)
	w := s.worker("worker", s.proxy.URL())
	p, r := s.producer("producer", s.proxy.URL()), s.relay("relay", s.proxy.URL())
	pgtest.AwaitSQL(t, s.old, `select count(*) > 50 from history_effect`)
	p.stopAndWait(t)
	s.awaitDrained()
	// The standby receives the append and settle of the next events, but not their effects.
	s.proxy.Pause()
	direct, relayed := s.producer("producer-direct", s.old.URL), s.relay("relay-direct", s.old.URL)
	s.awaitPayments(50)
	direct.stopAndWait(t)
	pgtest.AwaitSQL(t, s.old, `select not exists (select from outbox_event) and not exists (select from outbox_claim)`)
	relayed.stopAndWait(t)
	pgtest.AwaitSQL(t, s.old, `select count(*) = 1 from pg_stat_replication where replay_lsn >= pg_current_wal_lsn()`)
	s.db.Exec(t, `alter system set primary_conninfo = ''`)
	s.db.Exec(t, `select pg_reload_conf()`)
	pgtest.AwaitSQL(t, s.old, `select count(*) = 0 from pg_stat_replication`)
	s.proxy.Resume()
	pgtest.AwaitSQL(t, s.old, `select (select count(*) from history_effect) = (select count(*) from history_business)`)
	pgtest.Await(t, "committed offsets", func() (bool, error) { return s.source.CaughtUp(t.Context()) })
	forgotten := pgtest.One[int](t, s.db,
		`select (select count(*) from history_business) - (select count(*) from history_effect)`)
	s.primary.Kill()
	s.promote()
	last := s.producer("producer-2", s.proxy.URL())
	s.awaitPayments(30)
	last.stopAndWait(t)
	s.awaitDrained()
	pgtest.AwaitSQL(t, s.db, `select (select count(*) from history_effect) = (select count(*) from history_business)`)
	r.stopAndWait(t)
	w.stopAndWait(t)
	v := s.verdict(nil)
	t.Logf("%d effects were lost and applied again: %s", forgotten, v)
	if !v.OK() || forgotten < 50 {
		t.Errorf("%d effects were lost, want at least 50, and no violation", forgotten)
	}
}
