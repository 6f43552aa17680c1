//go:build failpoints

package proof

import (
	"context"
	"testing"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

// cellFromWAL has a relay that reads the WAL. A partition that is silent now and then, refused events, pauses and
// fences give lanes back to the table and take them from there, again and again.
func cellFromWAL(t *testing.T) *cell {
	t.Helper()
	return reading(t, emptyCell(t))
}

// reading makes a cell's relay one that reads the WAL.
func reading(t *testing.T, c *cell) *cell {
	t.Helper()
	c.source = fromWAL
	if _, err := operator.SetUpWAL(t.Context(), c.db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pgtest.Await(t, "the end of the slot", func() (bool, error) {
			_, err := operator.DropWAL(context.Background(), c.db.Pool, "")
			return err == nil, nil
		})
	})
	return c
}

// TestKillsFromWAL is TestKills for a relay that reads the WAL, at each point of its own, and where it has published.
func TestKillsFromWAL(t *testing.T) {
	t.Parallel()
	c := cellFromWAL(t)
	c.startAll(t)
	var report tally
	for _, p := range pointsOf(following) {
		c.dieAt(t, relaying, p, &report)
	}
	for _, name := range []failpoint.Name{failpoint.PublisherAcked, failpoint.RelayPublished, failpoint.RelayIncarnationRaised, failpoint.RelaySettled} {
		c.dieAt(t, relaying, failpoint.Point{Name: name}, &report)
	}
	c.start(t, relaying)
	c.finish(t)
	report.all(t, func(r role) bool { return r == following })
}

// TestFaultsFromWAL is TestFaults for such a relay.
func TestFaultsFromWAL(t *testing.T) {
	t.Parallel()
	c := cellFromWAL(t)
	c.startAll(t)
	total := map[failpoint.Name]int{}
	c.faults(t, relaying, pointsOf(following), total)
	c.finish(t)
	allFaulted(t, following, total)
}

// TestCommitCutsFromWAL is TestCommitCuts for the transactions of such a relay.
func TestCommitCutsFromWAL(t *testing.T) {
	t.Parallel()
	c := cellFromWAL(t)
	c.cutAll(t, []cut{
		{statement: "relay: stream"},
		{statement: "relay: unstream"},
		{statement: "relay: abandon"},
		{statement: "relay: streamed archived"},
		{statement: "relay: wal confirm"},
		{statement: "relay: wal own", prepare: anotherReader},
		{statement: "relay: take marked"},
		{statement: "relay: renew"},
		{statement: "relay: abandon all", prepare: anotherSlot},
		{statement: "relay: wal adopt", prepare: anotherSlot},
	})
	c.finish(t)
}

// anotherReader makes a relay that reads the WAL begin again.
func anotherReader(t *testing.T, c *cell) {
	c.db.Exec(t, `select pg_terminate_backend(s.active_pid) from pg_replication_slots s, outbox_wal w where s.slot_name = w.slot and s.active_pid is not null`)
}

// anotherSlot makes a relay that reads the WAL find that its slot is gone.
func anotherSlot(t *testing.T, c *cell) {
	pgtest.Await(t, "the loss of the slot", func() (bool, error) {
		_, _ = c.db.Pool.Exec(context.Background(), `select pg_terminate_backend(s.active_pid) from pg_replication_slots s, outbox_wal w where s.slot_name = w.slot and s.active_pid is not null`)
		_, err := c.db.Pool.Exec(context.Background(), `select pg_drop_replication_slot(s.slot_name) from pg_replication_slots s, outbox_wal w where s.slot_name = w.slot`)
		return err == nil, nil
	})
}
