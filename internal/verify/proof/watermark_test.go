//go:build failpoints

package proof

import (
	"testing"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func cellByWatermark(t *testing.T) *cell {
	t.Helper()
	c := emptyCell(t)
	c.dedup = byWatermark
	return c
}

// TestKillsByWatermark is TestKills for a worker that goes by numbers, at every failpoint of consumer and inbox, and
// for the relay where it has published and not settled: what it repeats then has the same numbers.
func TestKillsByWatermark(t *testing.T) {
	t.Parallel()
	for i := range cells {
		t.Run("cell", func(t *testing.T) {
			t.Parallel()
			c := cellByWatermark(t)
			c.startAll(t)
			var report tally
			for j, p := range pointsOf(worker) {
				if j%cells == i {
					c.dieAt(t, worker, p, &report)
				}
				if j%8 == i {
					c.start(t, worker)
					var w way
					if !c.kill(t, relaying, &w, failpoint.RelayPublished, 1) {
						t.Error("the relay publishes nothing")
					}
					c.start(t, relaying)
				}
			}
			c.start(t, worker)
			c.finish(t)
			c.checkRows(t)
		})
	}
}

// TestFaultsByWatermark is TestFaults for such a worker.
func TestFaultsByWatermark(t *testing.T) {
	t.Parallel()
	c := cellByWatermark(t)
	c.startAll(t)
	total := map[failpoint.Name]int{}
	c.faults(t, worker, pointsOf(worker), total)
	c.finish(t)
	c.checkRows(t)
	for _, p := range pointsOf(worker) {
		if p.Errs && total[p.Name] == 0 {
			t.Errorf("no fault happened at %s", p.Name)
		}
	}
}

// TestCommitCutsByWatermark is TestCommitCuts for the transactions of such a worker.
func TestCommitCutsByWatermark(t *testing.T) {
	t.Parallel()
	c := cellByWatermark(t)
	c.cutAll(t, []cut{
		{statement: "inbox: move a mark"},
		{statement: "inbox: pass"},
		{statement: "inbox: mark a key", prepare: poisonedKey},
		{statement: "inbox: park", prepare: poisonedKey},
		{statement: "inbox: quarantine"},
		{statement: "inbox: leave the list", prepare: poisonedKey},
		{statement: "inbox: count a run", alone: true, prepare: killedWorker},
	})
	c.finish(t)
	c.checkRows(t)
}

// checkRows: only what went through a person's hands has a row.
func (c *cell) checkRows(t *testing.T) {
	t.Helper()
	const unasked = `select count(*) from paid p where (exists (select from inbox_message m where m.message_id = p.id)
			or exists (select from inbox_message_any a where a.message_id = p.id))
		and not exists (select from inbox_audit a where a.message_id = p.id or a.message_id is null and a.key = convert_to(p.account, 'UTF8'))`
	if n := pgtest.One[int](t, c.db, unasked); n > 0 {
		t.Errorf("%d events have a row, and nobody has released or discarded them", n)
	}
	t.Logf("%d of %d events have none", pgtest.One[int](t, c.db, `select count(*) from paid p where not exists (select from inbox_message m where m.message_id = p.id)`),
		pgtest.One[int](t, c.db, `select count(*) from paid`))
}
