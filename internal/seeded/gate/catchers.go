package main

import (
	"time"

	"github.com/effectonce/effectonce/internal/seeded"
)

// catcher is the test that has to find a bug.
type catcher struct {
	Bug  seeded.Bug
	Room string // the package's directory
	Test string // the test, or one of its subtests
	// Says is in the test's output when it has found the bug, and not just failed.
	Says string
	// Tags are build tags beside bugs.
	Tags string
}

// within is how long a test may take to find a bug. Nearly all need less than a second; the limit is for busy machines, and
// for a test that would wait for ever instead of failing.
const within = 2 * time.Minute

// catchers has one for each bug, in the order of seeded.All.
func catchers() []catcher {
	return []catcher{
		{seeded.RelayCursor, "relay", "TestP2_LateCommit", "the event that committed late is not published", ""},
		{seeded.RelayTransactionOrder, "relay", "TestP2_IDsBeforeTransactions", "event 1 first occurs where 0 was due", ""},
		{seeded.RelaySettleWithoutFence, "relay", "TestP3_5_OnlyTheOwnerSettles", "a stale owner's settle changed the outbox", ""},
		{seeded.RelaySettleClearsJournal, "relay", "TestP3_5_ASettleDeletesItsOwnEntry", "entries that were another claim's are left", ""},
		{seeded.RelayClaimInOneStatement, "relay", "TestP3_1_AClaimReadsBehindItsLock", "published what was discarded while it waited", ""},
		{seeded.RelayNoBarrier, "relay", "TestP3_3_Phantom", "an event was published whose payment is gone", ""},
		{seeded.RelayWarningIgnored, "relay", "TestP3_3_FailedBarrierPublishesNothing", "events were published without a barrier", ""},
		{seeded.RelayRefusedDropped, "relay", "TestP4ParksTheKey", "first occurs where 5 was due", ""},
		{seeded.RelayFloorTrustsSequence, "relay", "TestP6FloorWaitsForWhoeverDrewAnID/an_open_transaction", "the transaction that drew id 1 is open", ""},
		{seeded.RelayFloorKept, "relay", "TestP6FloorFallsWithTheConnection", "what answers now may be another server", ""},
		{seeded.RelayJournalNumberedAnew, "relay", "TestP3_2_AnOpenEntryIsSentAsItIs", "and was sent as [0@201 1@202 2@203]", ""},
		{seeded.RelayJournalSortedByID, "relay", "TestP3_2_AnOpenEntryIsSentAsItIs", "and was sent as [0@101 1@105 2@201]", ""},
		{seeded.RelayBlockReused, "relay", "TestP3_2_ABlockBelongsToItsFence", "means", ""},
		{seeded.RelayParkWithoutMark, "relay", "TestP4ParksTheKey", "first occurs where 5 was due", ""},
		{seeded.RelayUnknownCommitKnown, "relay", "TestP3_7_AnUnknownCommitRaisesTheFence", "under the fence of a COMMIT whose outcome is unknown", ""},
		{seeded.RelayHostClock, "relay", "TestP5Lease/nobody_takes_the_lanes_of_a_live_relay", "another relay took 32 lanes", ""},
		{seeded.RelayReleasedWhileBusy, "relay", "TestP5_ALaneStaysWhileItIsPublished", "lanes that are being published from were given away", ""},
		{seeded.RelayNewerPastHeld, "relay", "TestP4HeldSurvivesATakeOver", "first occurs where", ""},
		{seeded.RelayTakeOverWithoutFence, "relay", "TestP5Lease/a_take-over_raises_the_fence", "each of them must rise by one", ""},
		{seeded.RelayOvertakenAccepted, "relay", "TestP4OvertakenAndHeld", "a consumer that goes by numbers", ""},
		{seeded.RelayWALConfirmsEarly, "relay", "TestWAL2ConfirmsOnlyAtTransactionEnds", "the slot stands behind a transaction that is not acked", ""},
		{seeded.RelayWALKeepalive, "relay", "TestWAL3KeepalivesConfirmNothingThatIsNotAcked", "a place was confirmed behind an event that is not acked", ""},
		{seeded.RelayWALDeletesEarly, "relay", "TestWALDeletesWhatIsAcked", "a row is gone whose event is not acked", ""},
		{seeded.RelayWALStandbyReads, "relay", "TestWALStandbyWaits", "the standby has ended the connection of a relay that lives", ""},
		{seeded.RelayWALUnfiltered, "relay", "TestWALHandOverUnderLoad", "events were published twice", ""},
		{seeded.RelayWALSameNumbering, "relay", "TestWALHoldsAPartition", "got other numbers in the same numbering", ""},
		{seeded.RelayWALNumbersAnew, "relay", "TestWALNumbersAfterADrop", "a consumer that goes by numbers applies", ""},
	}
}

// more are bugs that a whole system has to find as well, with processes that die, and the check of what is in Kafka and in
// the effects then: it is the checker that is checked here. The other bugs do no harm in so short a run, or another rule
// stands behind the one that is broken: an offset that was committed too early, for example, is read again from where the
// inbox knows to be.
func more() []catcher {
	return []catcher{}
}
