package failover

import (
	"errors"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/internal/verify/history"
	"github.com/effectonce/effectonce/relay/operator"
)

const newNumbering = "another system or timeline"

// TestSynchronous: with a synchronous standby a failover under load loses nothing, repeats no effect and inverts
// nothing. Nobody is restarted: every connection is cut, and finds the new primary under the old address.
func TestSynchronous(t *testing.T) {
	t.Parallel()
	s := newScene(t, true)
	producers := []*task{s.producer("producer-1", s.proxy.URL()), s.producer("producer-2", s.proxy.URL())}
	r, w := s.relay("relay", s.proxy.URL()), s.worker("worker", s.proxy.URL())
	pgtest.AwaitSQL(t, s.old, `select count(*) > 100 from history_effect`)
	s.await(100)
	s.primary.Kill()
	s.promote()
	s.await(200)
	for _, p := range producers {
		p.end(t)
	}
	s.drained()
	r.end(t)
	w.end(t)
	v := s.verdict(nil)
	t.Log(v)
	if !v.OK() {
		t.Error("a synchronous standby was promoted, and that was seen")
	}
	if v.Counts.Incarnations != 2 || !strings.Contains(s.said.String(), newNumbering) {
		t.Errorf("%d numberings in the log; the relay said: %s", v.Counts.Incarnations, s.said.String())
	}
}

// TestAsynchronous: what an asynchronous standby had not received is lost, and how much that is is counted. What it had
// holds: order and single effects of every key that survives.
func TestAsynchronous(t *testing.T) {
	t.Parallel()
	s := newScene(t, false)
	p, r, w := s.producer("producer", s.proxy.URL()), s.relay("relay", s.proxy.URL()), s.worker("worker", s.proxy.URL())
	pgtest.AwaitSQL(t, s.old, `select count(*) > 50 from history_effect`)
	// The standby falls behind, and nobody notices.
	s.db.Exec(t, `alter system set primary_conninfo = ''`)
	s.db.Exec(t, `select pg_reload_conf()`)
	pgtest.AwaitSQL(t, s.old, `select count(*) = 0 from pg_stat_replication`)
	before := pgtest.One[int](t, s.old, `select count(*) from history_effect`)
	s.await(100)
	pgtest.AwaitSQL(t, s.old, `select count(*) > $1 from history_effect`, before+50)
	s.primary.Kill()
	s.promote()
	s.await(100)
	p.end(t)
	s.drained()
	r.end(t)
	w.end(t)
	const lost = "the standby was asynchronous"
	v := s.verdict(map[history.Name]string{
		history.OKAppendLost: lost, history.Phantom: lost, history.PhantomEffect: lost, history.DedupForgotten: lost,
	})
	t.Log(v)
	if !v.OK() {
		t.Error("more is broken than an asynchronous standby explains")
	}
	t.Logf("committed appends lost: %d; records of events that no database knows: %d; their effects: %d; decisions "+
		"forgotten: %d; records published again: %d",
		v.Count(history.OKAppendLost), v.Count(history.Phantom), v.Count(history.PhantomEffect),
		v.Count(history.DedupForgotten), v.Counts.FirstAgain)
	if v.Count(history.OKAppendLost) == 0 || v.Count(history.Phantom) == 0 {
		t.Error("nothing was lost: the test proves nothing")
	}
	if !strings.Contains(s.said.String(), newNumbering) {
		t.Errorf("the relay did not say that a new numbering has begun: %s", s.said.String())
	}
}

// TestSplitBrain: the old primary lives on, with a relay and a producer that still know its own address. Both sides
// publish. No two events have one number, for the new primary's relay has begun a new numbering; the old one's events
// are known by the old numbering. Started again on the old primary, a relay is refused.
func TestSplitBrain(t *testing.T) {
	t.Parallel()
	s := newScene(t, false)
	p, r, w := s.producer("producer", s.proxy.URL()), s.relay("relay", s.proxy.URL()), s.worker("worker", s.proxy.URL())
	pOld, rOld := s.producer("producer-old", s.old.URL), s.relay("relay-old", s.old.URL)
	pgtest.AwaitSQL(t, s.old, `select count(*) > 50 from history_effect`)
	w.end(t)
	s.promote()
	w = s.worker("worker-2", s.proxy.URL())
	pgtest.AwaitSQL(t, s.db, `select incarnation > 1 from outbox_meta`)
	s.await(200)
	pgtest.AwaitSQL(t, s.old, `select incarnation = 1 from outbox_meta`)
	pOld.end(t)
	pgtest.AwaitSQL(t, s.old, `select not exists (select from outbox_event)`)
	rOld.end(t)
	p.end(t)
	s.drained()
	r.end(t)
	w.end(t)
	const split = "two primaries"
	v := s.verdict(map[history.Name]string{
		history.OKAppendLost: split, history.Phantom: split, history.PhantomEffect: split,
		history.DedupForgotten: split, history.StaleIncarnation: split, history.FenceShared: split,
		history.FenceWentBack: split,
	})
	t.Log(v)
	if !v.OK() {
		t.Error("more is broken than two primaries explain")
	}
	if v.Counts.Incarnations != 2 || v.Count(history.Phantom) == 0 {
		t.Errorf("%d numberings, %d records of the old primary alone: the test proves nothing", v.Counts.Incarnations,
			v.Count(history.Phantom))
	}
	// What a person sees who starts a relay on the old primary: the log is ahead of it.
	var published []event.Event
	for _, rec := range kafkatest.ReadAll(t, s.topic) {
		e := event.Record{Topic: s.topic, Partition: rec.Partition, Offset: rec.Offset, Key: rec.Key, Value: rec.Value}
		for _, h := range rec.Headers {
			e.Headers = append(e.Headers, event.Header{Key: h.Key, Value: h.Value})
		}
		published = append(published, event.Decode(&e, ""))
	}
	var behind *operator.BehindError
	if err := operator.CheckNumbers(t.Context(), s.old.Pool, "", published); !errors.As(err, &behind) || !behind.Newer {
		t.Errorf("a relay would start on the old primary: %v", err)
	} else {
		t.Log(behind)
	}
}

// TestP10AWorkerLooksBack: an asynchronous failover takes back effects whose offsets are committed. The worker is not
// restarted, its connections only find another server: it notices, joins its group again, and begins where its database
// is.
func TestP10AWorkerLooksBack(t *testing.T) {
	t.Parallel()
	s := newScene(t, false)
	w := s.worker("worker", s.proxy.URL())
	p, r := s.producer("producer", s.proxy.URL()), s.relay("relay", s.proxy.URL())
	pgtest.AwaitSQL(t, s.old, `select count(*) > 50 from history_effect`)
	p.end(t)
	s.drained()
	// One more round is appended, published and settled where the standby hears of it, and applied where it does not.
	s.proxy.Pause()
	direct, relayed := s.producer("producer-direct", s.old.URL), s.relay("relay-direct", s.old.URL)
	s.await(50)
	direct.end(t)
	pgtest.AwaitSQL(t, s.old, `select not exists (select from outbox_event) and not exists (select from outbox_claim)`)
	relayed.end(t)
	pgtest.AwaitSQL(t, s.old, `select count(*) = 1 from pg_stat_replication where replay_lsn >= pg_current_wal_lsn()`)
	s.db.Exec(t, `alter system set primary_conninfo = ''`)
	s.db.Exec(t, `select pg_reload_conf()`)
	pgtest.AwaitSQL(t, s.old, `select count(*) = 0 from pg_stat_replication`)
	s.proxy.Resume()
	pgtest.AwaitSQL(t, s.old, `select (select count(*) from history_effect) = (select count(*) from history_business)`)
	pgtest.Await(t, "committed offsets", func() (bool, error) {
		d, err := s.source.Read(t.Context())
		return history.Check(history.Input{Dump: d}).Count(history.Lag) == 0, err
	})
	forgotten := pgtest.One[int](t, s.db,
		`select (select count(*) from history_business) - (select count(*) from history_effect)`)
	s.primary.Kill()
	s.promote()
	last := s.producer("producer-2", s.proxy.URL())
	s.await(30)
	last.end(t)
	s.drained()
	pgtest.AwaitSQL(t, s.db, `select (select count(*) from history_effect) = (select count(*) from history_business)`)
	r.end(t)
	w.end(t)
	v := s.verdict(nil)
	t.Logf("%d effects were forgotten and done again: %s", forgotten, v)
	if !v.OK() || forgotten < 50 {
		t.Errorf("%d effects were forgotten; what a worker has told Kafka, its new database does not have", forgotten)
	}
}
