//go:build !race

package inbox

import (
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/explore"
)

// anything stands for any violation.
const anything = "?"

// explores runs one exploration. want is a part of the violation that it must find; "": none.
func explores(t *testing.T, sc mScenario, want string) {
	t.Helper()
	found := explore.Run(sc.model())
	switch {
	case want == anything && found.Violation != nil:
	case want == "" && (found.Violation != nil || !found.Complete):
		t.Fatal(found)
	case want != "" && (found.Violation == nil || !strings.Contains(found.Violation.What, want)):
		t.Fatalf("want %q, found %v", want, found)
	}
	t.Log(found)
}

// mOrder is two events of a key and one of another on a partition, the first one twice; mShort lacks the other, mPair
// the repetition as well, and mTwo has two partitions.
var (
	mOrder = mScenario{log: [2][]uint8{{0, 1, 0, 2}}, key: [mIDs]uint8{0, 0, 1}, batch: 3}
	mShort = mScenario{log: [2][]uint8{{0, 1, 0}}, key: [mIDs]uint8{0, 0, 1}, batch: 2}
	mPair  = mScenario{log: [2][]uint8{{0, 1}}, batch: 2}
	mTwo   = mScenario{log: [2][]uint8{{0, 1}, {2}}, key: [mIDs]uint8{0, 0, 1}, batch: 2}
)

func (sc mScenario) with(f mFaults, natures ...mNature) mScenario {
	sc.faults = f
	copy(sc.nature[:], natures)
	return sc
}

func (sc mScenario) but(change func(*mScenario)) mScenario {
	change(&sc)
	return sc
}

func (sc mScenario) byNumber() mScenario { return sc.but(func(sc *mScenario) { sc.numbers = true }) }

// mParts is a batch of two keys that two transactions decide at a time, and of which the first event comes twice.
var mParts = mScenario{log: [2][]uint8{{0, 1, 2, 0}}, key: [mIDs]uint8{0, 1, 0}, batch: 4, parts: true}

// TestModelHolds: every interleaving of these scenarios keeps the invariants and drains once the faults end.
func TestModelHolds(t *testing.T) {
	t.Parallel()
	alone := mShort.but(func(sc *mScenario) { sc.policy = ParkEvent })
	old := mOrder.but(func(sc *mScenario) { sc.age[1], sc.age[2] = mTooOld, mForeign })
	for name, sc := range map[string]mScenario{
		"plain": mOrder.with(mFaults{rebalances: 1, kills: 1, lost: 1}),
		"plain, late progress": mOrder.with(mFaults{rebalances: 1, kills: 1}).but(
			func(sc *mScenario) { sc.late = true }),
		"late commit":        mOrder.with(mFaults{lateCommits: 1, rebalances: 1, kills: 1}),
		"outage":             mOrder.with(mFaults{rebalances: 1, outages: 1, lost: 1}),
		"flaky, rebalance":   mShort.with(mFaults{rebalances: 1}, mFlaky),
		"flaky, lost answer": mShort.with(mFaults{lost: 1}, mFlaky),
		"flaky, named and not": mOrder.with(mFaults{lost: 1}, mFlaky, mFine, mFlaky).but(
			func(sc *mScenario) { sc.unnamed = true }),
		"flaky before terminal":    mOrder.with(mFaults{}, mFlaky, mTerminal),
		"retryable":                mShort.with(mFaults{lost: 1}, mRetryable, mFlaky),
		"terminal, rebalance":      mShort.with(mFaults{rebalances: 1}, mTerminal),
		"terminal, lost answer":    mShort.with(mFaults{lost: 1}, mTerminal),
		"terminal, released early": mShort.with(mFaults{releases: 1, lost: 1}, mTerminal, mFlaky),
		"terminal, discarded":      mShort.with(mFaults{lost: 1, discards: 1}, mTerminal),
		"killer":                   mOrder.with(mFaults{kills: 1, lostCounts: 1}, mFine, mKiller),
		"killer, rebalance":        mOrder.with(mFaults{rebalances: 1}, mFine, mKiller),
		"killer, released early":   mShort.with(mFaults{releases: 1, lostCounts: 1}, mKiller),
		"killer in a release":      mPair.with(mFaults{releases: 1, lost: 1}, mFlaky, mKiller),
		"killed in a release": mShort.with(mFaults{releases: 1, kills: 1}, mTerminal, mFlaky).but(
			func(sc *mScenario) { sc.crashes = 3 }),
		"retryable in a release":  mShort.with(mFaults{releases: 1}, mFlaky, mRetryable),
		"killer beside innocents": mTwo.with(mFaults{}, mKiller),
		"alone, terminal":         alone.with(mFaults{rebalances: 1}, mFine, mTerminal),
		"alone, killer":           alone.with(mFaults{kills: 1}, mKiller),
		"keyless, terminal": mShort.with(mFaults{rebalances: 1}, mTerminal).but(
			func(sc *mScenario) { sc.keyless = 0b111 }),
		"halt": mOrder.with(mFaults{rebalances: 1}, mFine, mKiller).but(
			func(sc *mScenario) { sc.policy = Halt }),
		"bound": mOrder.with(mFaults{lost: 1}, mTerminal).but(
			func(sc *mScenario) { sc.most = 1; sc.log[0] = []uint8{0, 1} }),
		"too old": old.with(mFaults{rebalances: 1, lost: 1}),
		"too old, terminal": old.with(mFaults{lost: 1}, mTerminal).but(
			func(sc *mScenario) { sc.log[0] = []uint8{0, 1, 0} }),
		"too far ahead, discarded": mShort.with(mFaults{rebalances: 1, discards: 1}).but(
			func(sc *mScenario) { sc.age[0] = mTooFuture }),
		"restored": mOrder.with(mFaults{restores: 1, lost: 1}).but(
			func(sc *mScenario) { sc.late = true }),
		"restored, terminal": mShort.with(mFaults{restores: 1}, mFine, mTerminal).but(
			func(sc *mScenario) { sc.crashes = 5 }),
		"two partitions": mTwo.with(mFaults{rebalances: 1, lost: 1}),

		"parts": mParts.with(mFaults{rebalances: 1, kills: 1, lost: 1}),
		"parts, late progress": mParts.with(mFaults{rebalances: 1, lost: 1}).but(
			func(sc *mScenario) { sc.late = true }),
		"parts, late commit":        mParts.with(mFaults{lateCommits: 1, kills: 1}),
		"parts, flaky":              mParts.with(mFaults{lost: 1}, mFlaky, mFine, mFlaky),
		"parts, retryable":          mParts.with(mFaults{rebalances: 1}, mFine, mRetryable),
		"parts, terminal, released": mParts.with(mFaults{releases: 1}, mTerminal, mFine, mFlaky),
		"parts, killer":             mParts.with(mFaults{kills: 1, lostCounts: 1}, mFine, mKiller),
		"parts, killer, rebalance":  mParts.with(mFaults{rebalances: 1}, mFine, mFine, mKiller),
		"parts, bound": mParts.with(mFaults{lost: 1}, mTerminal).but(
			func(sc *mScenario) { sc.most = 1 }),
		"parts, too old": mParts.with(mFaults{rebalances: 1}).but(
			func(sc *mScenario) { sc.age[0] = mTooOld }),
		"parts, restored": mParts.with(mFaults{restores: 1}).but(
			func(sc *mScenario) { sc.late = true }),

		"numbers":                          mOrder.with(mFaults{rebalances: 1, kills: 1, lost: 1}).byNumber(),
		"numbers, outage":                  mOrder.with(mFaults{rebalances: 1, outages: 1, lost: 1}).byNumber(),
		"numbers, flaky, lost answer":      mShort.with(mFaults{lost: 1}, mFlaky).byNumber(),
		"numbers, flaky before terminal":   mOrder.with(mFaults{}, mFlaky, mTerminal).byNumber(),
		"numbers, terminal, rebalance":     mShort.with(mFaults{rebalances: 1}, mTerminal).byNumber(),
		"numbers, terminal, lost answer":   mOrder.with(mFaults{lost: 1}, mTerminal).byNumber(),
		"numbers, terminal, discarded":     mShort.with(mFaults{lost: 1, discards: 1}, mTerminal).byNumber(),
		"numbers, terminal, early release": mShort.with(mFaults{releases: 1, lost: 1}, mTerminal, mFlaky).byNumber(),
		"numbers, killer":                  mShort.with(mFaults{rebalances: 1}, mFine, mKiller).byNumber(),
		"numbers, alone, terminal":         alone.with(mFaults{rebalances: 1}, mFine, mTerminal).byNumber(),
		"numbers, halt": mOrder.with(mFaults{rebalances: 1}, mFine, mKiller).but(
			func(sc *mScenario) { sc.policy = Halt }).byNumber(),
		"numbers, restored": mOrder.with(mFaults{restores: 1, lost: 1}).but(
			func(sc *mScenario) { sc.late = true }).byNumber(),
		"numbers, two partitions": mTwo.with(mFaults{rebalances: 1, lost: 1}).byNumber(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explores(t, sc, "")
		})
	}
}

// TestModelFinds: without one of its rules, the model finds the violation that the rule prevents.
func TestModelFinds(t *testing.T) {
	t.Parallel()
	one := mScenario{log: [2][]uint8{{0}}, batch: 1}
	pair := mScenario{log: [2][]uint8{{0}, {1}}, key: [mIDs]uint8{0, 1}, batch: 1}
	for name, c := range map[string]struct {
		want string
		sc   mScenario
		drop func(*mRules)
	}{
		"P9.2 the offset after the transaction": {
			"passed undecided", mOrder.with(mFaults{}),
			func(r *mRules) { r.offsetFirst = true },
		},
		"P9.2 the offset again after no answer": {
			anything, mShort.with(mFaults{lateCommits: 1}),
			func(r *mRules) { r.lateStays = true },
		},
		"P9.2 a database without a row": {
			anything, mShort.with(mFaults{restores: 1}),
			func(r *mRules) { r.beginsAtGroup = true },
		},
		"P9.2 ids, then marks": {anything, mOrder.with(mFaults{rebalances: 2, releases: 1},
			mFlaky), func(r *mRules) { r.marksFirst = true }},
		"P9.2 an open id is decided": {anything, mOrder.with(mFaults{rebalances: 1, kills: 1},
			mTerminal).but(func(sc *mScenario) { sc.policy = ParkEvent }), func(r *mRules) { r.openRuns = true }},
		"P9.3 an unknown COMMIT runs again": {
			"innocent", mOrder.with(mFaults{lost: 1}),
			func(r *mRules) { r.proofByAbsence = true },
		},
		"P9.4 a doom is not passed on": {
			"innocent", mOrder.with(mFaults{}, mFlaky, mTerminal),
			func(r *mRules) { r.doomPassedOn = true },
		},
		"P9.5 the range before the batch": {
			"kills without bound",
			mOrder.with(mFaults{}, mFine, mKiller), func(r *mRules) { r.noRange = true },
		},
		"P9.5 counted before the run": {
			"kills without bound",
			mOrder.with(mFaults{}, mFine, mKiller), func(r *mRules) { r.countAfter = true },
		},
		"P9.5 a counted run is alone": {
			"innocent", pair.with(mFaults{}, mKiller),
			func(r *mRules) { r.notAlone = true },
		},
		"P9.5 a count that was outlived goes back": {
			"innocent", one.with(mFaults{rebalances: 3}),
			func(r *mRules) { r.keepCount = true },
		},
		"P9.5 a count whose answer was lost goes back": {
			"innocent", one.with(mFaults{kills: 1, lostCounts: 3}),
			func(r *mRules) { r.keepLostCount = true },
		},
		"P9.6 parking inserts the id first": {
			anything, mOrder.with(mFaults{rebalances: 1}, mFlaky),
			func(r *mRules) { r.parkBlind = true },
		},
		"P9.6 the mark is shared": {
			"without a mark", mOrder.with(mFaults{}, mTerminal),
			func(r *mRules) { r.sharedMarkless = true },
		},
		"P9.6 what waits leaves no row": {
			"never applied", mOrder.with(mFaults{}, mTerminal),
			func(r *mRules) { r.keepRow = true },
		},
		"P9.6 a second look before the mark goes": {
			anything, mOrder.with(mFaults{}, mTerminal),
			func(r *mRules) { r.unmarkBlind = true },
		},
		"P9.6 released runs are counted": {
			"kills without bound",
			one.with(mFaults{releases: 1}, mKiller), func(r *mRules) { r.uncountedRun = true },
		},
		"P9.6 a batch of a release is noted": {
			"kills without bound",
			mPair.with(mFaults{releases: 1}, mFlaky, mKiller), func(r *mRules) { r.bareBatch = true },
		},
		"P9.6 a released count whose answer was lost": {
			"innocent", one.with(mFaults{lostCounts: 3}, mTerminal),
			func(r *mRules) { r.keepLostCount = true },
		},
		"P9.1 quarantine looks again behind its wait": {
			"quarantined although",
			mOrder.with(mFaults{rebalances: 1, discards: 1}).but(func(sc *mScenario) { sc.age[0] = mTooFuture }),
			func(r *mRules) { r.oneLook = true },
		},
		"P9.6 resume counts anew": {
			"stuck", mOrder.with(mFaults{}, mFine, mKiller).but(func(sc *mScenario) { sc.policy = Halt }),
			func(r *mRules) { r.resumeKeeps = true },
		},
		"P9.8 a transaction proves its mark": {
			"a second effect",
			mShort.with(mFaults{rebalances: 1}).byNumber(), func(r *mRules) { r.markUnproven = true },
		},
		"P9.8 parking proves its mark": {
			"parked although it is decided",
			mShort.with(mFaults{rebalances: 1}, mFlaky).byNumber(), func(r *mRules) { r.parkUnproven = true },
		},
		"P9.8 parking advances the mark": {
			anything, mShort.with(mFaults{rebalances: 1}, mTerminal).byNumber(),
			func(r *mRules) { r.parkLeavesMark = true },
		},
		"P9.8 the mark moves with the effects": {
			"passed undecided",
			mShort.with(mFaults{kills: 1}).byNumber(), func(r *mRules) { r.markApart = true },
		},
		"P9.10 a key is in one part": {
			"before an earlier one of its key",
			mParts.with(mFaults{}).but(func(sc *mScenario) { sc.log[0] = []uint8{0, 1, 2} }),
			func(r *mRules) { r.dealsAnyhow = true },
		},
		"P9.10 no parts of what was left undecided": {
			"kills without bound",
			mParts.with(mFaults{}, mFine, mKiller), func(r *mRules) { r.partsOfRange = true },
		},
		"P9.10 the offset after all parts": {
			"passed undecided",
			mParts.with(mFaults{}), func(r *mRules) { r.partEnds = true },
		},
		"P9.1 quarantine takes the event and not its key": {
			"takes its key",
			mOrder.with(mFaults{}).but(func(sc *mScenario) { sc.age[0] = mTooOld }),
			func(r *mRules) { r.quarantineKey = true },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.drop(&c.sc.rules)
			explores(t, c.sc, c.want)
		})
	}
}
