//go:build !race

package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/explore"
)

func (w *modelWorld) explore(t *testing.T) explore.Result {
	t.Helper()
	w.prepare()
	began := time.Now()
	found := explore.Run(explore.Model[modelState, modelState]{
		Start: []modelState{w.start()}, Next: w.next, Key: func(s *modelState) modelState { return *s },
		Bad: w.bad, Good: w.good, MaxStates: w.limit,
	})
	t.Logf("%s: %v (%v)", w.name, found, time.Since(began).Round(time.Millisecond))
	return found
}

// modelWorlds are explored completely.
func modelWorlds() []*modelWorld {
	return []*modelWorld{
		// Leases, zombies and late requests.
		{name: "take-over, late request", keys: "AA", relays: 2, budget: modelBudget{expire: 1, delay: 1}},
		{name: "take-over and back", keys: "AA", preload: 1, relays: 2, max: 1, budget: modelBudget{expire: 2}},
		{name: "killed, answer lost", keys: "AAB", preload: 2, relays: 2, budget: modelBudget{crash: 1, lostAck: 1}},
		{name: "handed over", keys: "AA", relays: 2, budget: modelBudget{stop: 1, late: 1}},
		{name: "two lanes", keys: "AC", preload: 1, budget: modelBudget{lost: 1, lostAck: 1}},
		// Commits whose outcome is unknown.
		{name: "commit unknown", keys: "AA", preload: 1, budget: modelBudget{lost: 2, fail: 1}},
		{name: "late transaction", keys: "AA", relays: 2, preload: 1, budget: modelBudget{ghost: 1, expire: 1}},
		{name: "late transaction, parked", keys: "AA", budget: modelBudget{ghost: 1, refuse: 1}},
		{name: "late transaction, held", keys: "AA", preload: 1, budget: modelBudget{ghost: 1, away: 1}},
		{name: "given up, unknown", keys: "AA", budget: modelBudget{late: 1, lost: 1, lostAck: 1}},
		// Refusals, releases and discards.
		{name: "parked", keys: "AABA", preload: 2, budget: modelBudget{refuse: 2}},
		{name: "parked, late request", keys: "AAB", preload: 1, budget: modelBudget{refuse: 1, delay: 1}},
		{name: "parked, taken over", keys: "AAB", preload: 2, relays: 2, budget: modelBudget{refuse: 1, expire: 1}},
		{name: "parked, discarded", keys: "AAB", preload: 2, budget: modelBudget{refuse: 1, discard: 1, crash: 1}},
		{name: "parked alone", keys: "AAB", preload: 2, park: ParkEvent, budget: modelBudget{refuse: 1, crash: 1}},
		{name: "keyless", keys: "-A-", preload: 2, budget: modelBudget{refuse: 1, crash: 1}},
		// Places that do not answer.
		{name: "held", keys: "ABA", apart: true, preload: 1, budget: modelBudget{away: 2, lostAck: 1}},
		{name: "held, parked", keys: "AABA", preload: 3, budget: modelBudget{away: 1, refuse: 1}},
		{name: "held, taken over", keys: "AB", relays: 2, preload: 1, budget: modelBudget{away: 1, expire: 1}},
		{name: "held, late request", keys: "AAB", apart: true, preload: 2, budget: modelBudget{away: 1, delay: 1}},
		{name: "topic refused", keys: "AUA", preload: 1, budget: modelBudget{topic: 2}},
		{
			name: "topic refused, partition away", keys: "AB", apart: true, preload: 1,
			budget: modelBudget{topic: 1, away: 1, crash: 1},
		},
		{name: "topic refused, parked", keys: "AAB", preload: 2, budget: modelBudget{topic: 1, refuse: 1}},
		{name: "paused", keys: "AA", inside: true, preload: 1, budget: modelBudget{pause: 2}},
		{name: "paused, held", keys: "AB", apart: true, preload: 1, budget: modelBudget{pause: 1, away: 1, crash: 1}},
		// Scheduled events, and floors.
		{name: "scheduled", keys: "AAA", scheduled: "yny", inside: true, budget: modelBudget{crash: 1}},
		{name: "scheduled, late transaction", keys: "AA", scheduled: "y", budget: modelBudget{ghost: 1}},
		{name: "floors", keys: "AB", floors: true, rescans: true, budget: modelBudget{crash: 1}},
		{
			name: "floors, crash", keys: "AA", preload: 1, floors: true, rescans: true, async: true,
			budget: modelBudget{dbCrash: 1},
		},
		{name: "floors, interleaved", keys: "AB", inside: true, floors: true, rescans: true},
		{
			name: "floors, in slices", keys: "AAB", preload: 2, floors: true, rescans: true, far: 1,
			budget: modelBudget{crash: 1},
		},
		{name: "floors, a transaction stays open", keys: "ABA", floors: true, rescans: true, excepts: true},
		{
			name: "floors, a transaction stays open, in slices", keys: "AB", floors: true, rescans: true, excepts: true,
			far: 1,
		},
		{
			name: "floors, a transaction stays open, hidden crash", keys: "AB", floors: true, rescans: true,
			excepts: true, async: true, hidden: true, budget: modelBudget{dbCrash: 1},
		},
		{
			name: "floors, refused statements", keys: "A", floors: true, rescans: true, async: true,
			budget: modelBudget{fail: 1, dbCrash: 1},
		},
		{
			name: "floors, hidden crash", keys: "AA", floors: true, rescans: true, async: true, hidden: true,
			budget: modelBudget{dbCrash: 1},
		},
		// Servers that crash, and standbys.
		{name: "database crash", keys: "AA", async: true, budget: modelBudget{dbCrash: 2}},
		{
			name: "database crash, parked", keys: "AA", preload: 1, async: true,
			budget: modelBudget{dbCrash: 1, refuse: 1},
		},
		{name: "database crash, held", keys: "AA", preload: 1, async: true, budget: modelBudget{dbCrash: 1, away: 1}},
		{
			name: "hidden crash", keys: "AAB", preload: 1, async: true, hidden: true, rescans: true,
			budget: modelBudget{dbCrash: 2},
		},
		{name: "failover", keys: "AA", standby: true, budget: modelBudget{failover: 1, expire: 1}},
		{
			name: "failover behind a pooler", keys: "AA", preload: 1, standby: true, hidden: true, rescans: true,
			relays: 2, budget: modelBudget{failover: 1, expire: 1},
		},
		{name: "failover, asynchronous", keys: "AA", preload: 1, lagging: true, budget: modelBudget{failover: 1}},
		{
			name: "failover, asynchronous, lease over", keys: "AA", preload: 1, lagging: true,
			budget: modelBudget{failover: 1, expire: 1},
		},
		{
			name: "failover, asynchronous, behind a pooler", keys: "AA", lagging: true, hidden: true, rescans: true,
			budget: modelBudget{failover: 1},
		},
		{
			name: "failover, asynchronous, behind a pooler, held", keys: "AA", preload: 1, lagging: true, hidden: true,
			budget: modelBudget{failover: 1, away: 1},
		},
		{name: "failover, held", keys: "AA", preload: 1, standby: true, budget: modelBudget{failover: 1, away: 1}},
		{
			name: "failover, topic refused", keys: "AU", preload: 1, standby: true,
			budget: modelBudget{failover: 1, topic: 1},
		},
		{name: "failover, scheduled", keys: "AA", scheduled: "y", standby: true, budget: modelBudget{failover: 1}},
		{
			name: "failover, floors", keys: "A", lagging: true, floors: true, rescans: true,
			budget: modelBudget{failover: 1},
		},
		{name: "restored and fenced", keys: "AA", preload: 1, lagging: true, budget: modelBudget{restore: 1}},
	}
}

// TestModelWorlds explores every world completely. Together they run every statement that the model has.
func TestModelWorlds(t *testing.T) {
	t.Parallel()
	worlds := modelWorlds()
	t.Cleanup(func() {
		if t.Failed() || testing.Short() {
			return
		}
		for name := range modelOps {
			if !slices.ContainsFunc(worlds, func(w *modelWorld) bool { return w.ran == nil || w.ran[name] }) {
				t.Errorf("no world runs the statement %q: the model lacks a step", name)
			}
		}
	})
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			if found := w.explore(t); found.Violation != nil || !found.Complete {
				t.Fatal(found)
			}
		})
	}
}
