package relay

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/explore"
)

func (w *modelWorld) explore(t *testing.T) explore.Found {
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

// modelWorlds are explored whole.
func modelWorlds() []*modelWorld {
	return []*modelWorld{
		{name: "take-over", keys: "AA", relays: 2, budget: modelBudget{expire: 1, delay: 1}},
		{name: "crash", keys: "AA", preload: 1, relays: 2, budget: modelBudget{crash: 1, lostAck: 1}},
		{name: "unknown", keys: "AA", budget: modelBudget{lost: 1}},
		{name: "ghost", keys: "AA", budget: modelBudget{ghost: 1}},
		{name: "park", keys: "AAB", preload: 2, budget: modelBudget{refuse: 1}},
		{name: "hold", keys: "AB", apart: true, budget: modelBudget{away: 1}},
		{name: "topic", keys: "AU", budget: modelBudget{topic: 1}},
		{name: "pause", keys: "AA", inside: true, budget: modelBudget{pause: 1}},
		{name: "scheduled", keys: "AA", scheduled: "y", inside: true},
		{name: "floor", keys: "AAB", floors: true, rescans: true},
		{name: "keyless", keys: "--", budget: modelBudget{refuse: 1}},
		{name: "crash of the database", keys: "AA", async: true, budget: modelBudget{dbCrash: 1}},
		{name: "failover", keys: "AA", standby: true, budget: modelBudget{failover: 1}},
	}
}

func TestModelWorlds(t *testing.T) {
	for _, w := range modelWorlds() {
		t.Run(w.name, func(t *testing.T) {
			if found := w.explore(t); found.Violation != nil || !found.Complete {
				t.Fatal(found)
			}
		})
	}
}
