//go:build !race

package relay

import (
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/explore"
)

// modelBug is a rule to leave out, the smallest world that shows it, and the violation found there.
type modelBug struct {
	rule  string
	bug   modelRules
	world modelWorld
	want  string
}

func modelBugs() []modelBug {
	const order, numbers, lost, phantom, twice, none = "order:", "numbers:", "lost:", "phantom:", "two open entries",
		"none"
	return []modelBug{
		{"P2.cursor", modelRules{cursor: true}, modelWorld{keys: "AB"}, explore.Stuck},
		{"P3.1.one-statement", modelRules{oneStatement: true, noRaise: true}, modelWorld{
			keys: "A", lateSettles: true,
			budget: modelBudget{ghost: 1},
		}, numbers},
		{"P3.1.one-statement (not without it)", modelRules{noRaise: true}, modelWorld{
			keys: "A", lateSettles: true,
			budget: modelBudget{ghost: 1},
		}, none},
		{"P3.1.fence", modelRules{noFence: true}, modelWorld{keys: "AAA", budget: modelBudget{ghost: 1}}, twice},
		{
			"P3.2.resort",
			modelRules{resort: true},
			modelWorld{keys: "AB", preload: 2, budget: modelBudget{refuse: 1, away: 1, crash: 1}},
			numbers,
		},
		{
			"P3.2.renumber",
			modelRules{renumber: true},
			modelWorld{keys: "AA", relays: 2, budget: modelBudget{expire: 1}},
			numbers,
		},
		{
			"P3.2.block",
			modelRules{keepBlock: true},
			modelWorld{keys: "AAA", relays: 2, budget: modelBudget{expire: 2}},
			numbers,
		},
		{
			"P3.3.barrier",
			modelRules{noBarrier: true},
			modelWorld{keys: "A", async: true, budget: modelBudget{dbCrash: 1}},
			phantom,
		},
		{"P3.4.send-ahead", modelRules{sendAhead: true}, modelWorld{keys: "AA"}, order},
		{
			"P3.5.clear-journal",
			modelRules{clearJournal: true, noRaise: true, ghostSettles: true},
			modelWorld{keys: "AAA", budget: modelBudget{ghost: 1}},
			twice,
		},
		{
			"P3.5.ghost-settle",
			modelRules{ghostSettles: true},
			modelWorld{keys: "A", budget: modelBudget{refuse: 2, discard: 1}},
			"with an empty list",
		},
		{
			"P3.6.settle-undecided",
			modelRules{settleOn: true},
			modelWorld{keys: "A", budget: modelBudget{late: 1}},
			lost,
		},
		{
			"P3.6.taken-back",
			modelRules{noTakenBack: true},
			modelWorld{keys: "AA", hidden: true, budget: modelBudget{dbCrash: 1}},
			twice,
		},
		{
			"P3.7.unknown-commit",
			modelRules{noRaise: true},
			modelWorld{keys: "AAA", budget: modelBudget{ghost: 1}},
			twice,
		},
		{
			"P4.send-on",
			modelRules{sendOn: true},
			modelWorld{keys: "AB", relays: 2, budget: modelBudget{refuse: 1, expire: 1}},
			numbers,
		},
		{
			"P4.behind",
			modelRules{noBehind: true},
			modelWorld{keys: "AA", max: 1, budget: modelBudget{away: 1, refuse: 1}},
			order,
		},
		{
			"P4.maybe",
			modelRules{heldSent: true},
			modelWorld{keys: "AB", relays: 2, budget: modelBudget{refuse: 1, expire: 1}},
			numbers,
		},
		{
			"P4.into-outbox",
			modelRules{intoOutbox: true},
			modelWorld{keys: "AA", max: 1, budget: modelBudget{refuse: 1}},
			order,
		},
		{"P4.old-seq", modelRules{oldSeq: true}, modelWorld{keys: "AB", budget: modelBudget{refuse: 1}}, numbers},
		{
			"P4.unmark",
			modelRules{blindUnmark: true},
			modelWorld{keys: "AAA", max: 1, budget: modelBudget{refuse: 1}},
			order,
		},
		{"P4.held-first", modelRules{noSortOut: true}, modelWorld{keys: "AA", budget: modelBudget{away: 1}}, order},
		{
			"P4.pause",
			modelRules{pauseLater: true},
			modelWorld{keys: "AA", inside: true, budget: modelBudget{pause: 1}},
			"paused",
		},
		{
			"P5.take-over",
			modelRules{sameFence: true},
			modelWorld{keys: "AA", relays: 2, budget: modelBudget{expire: 2}},
			twice,
		},
		{
			"P5.incarnation",
			modelRules{noIncarnation: true},
			modelWorld{keys: "AA", lagging: true, budget: modelBudget{failover: 1}},
			numbers,
		},
		{
			"P5.incarnation behind a pooler",
			modelRules{noIncarnation: true},
			modelWorld{keys: "AA", lagging: true, hidden: true, budget: modelBudget{failover: 1}},
			numbers,
		},
		{
			"P5.restore",
			modelRules{noFenceAfterRestore: true},
			modelWorld{keys: "AA", lagging: true, budget: modelBudget{restore: 1}},
			numbers,
		},
		{"P6.durable", modelRules{lazyFloor: true}, modelWorld{
			keys: "AA", floors: true, rescans: true, async: true, hidden: true, budget: modelBudget{dbCrash: 1},
		}, "below the floor"},
		{"P6.holders", modelRules{noHolders: true}, modelWorld{keys: "AB", floors: true}, explore.Stuck},
		{"P6.except", modelRules{exceptSeen: true}, modelWorld{keys: "ABA", floors: true, excepts: true}, "order:"},
		{"P6.decided-late", modelRules{lateDecided: true}, modelWorld{keys: "AB", floors: true}, explore.Stuck},
	}
}

// TestModelFindsBugs leaves out one rule at a time. If the model did not find one, it would lack a step.
func TestModelFindsBugs(t *testing.T) {
	t.Parallel()
	for _, bug := range modelBugs() {
		t.Run(bug.rule, func(t *testing.T) {
			w := &bug.world
			w.name, w.rules = bug.rule, bug.bug
			t.Parallel()
			found := w.explore(t)
			if bug.want == "none" {
				if found.Violation != nil || !found.Complete {
					t.Fatalf("this rule alone should cause no violation: %v", found)
				}
				return
			}
			if found.Violation == nil || !strings.Contains(found.Violation.What, bug.want) {
				t.Fatalf("want a violation %q: %v", bug.want, found)
			}
		})
	}
}
