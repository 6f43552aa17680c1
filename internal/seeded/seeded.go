// Package seeded has the bugs that a build for tests can switch on, one at a time, to show that the tests find them: a check
// that cannot fail proves nothing.
//
// With the build tag bugs, EFFECTONCE_BUG=<name> in the environment switches on the bug of that name. Without the tag, [On] is
// a constant false, and the compiler leaves the bugs out of the program. The command gate below this package runs, for each
// bug, the test that has to find it.
package seeded

// Variable names the environment variable that switches a bug on.
const Variable = "EFFECTONCE_BUG"

// Bug is a bug by its name: the room that it is in, and what is wrong. [All] says what it does to users.
type Bug string

// Reached is what a program says on standard error when it first comes to the bug that is switched on.
func Reached(b Bug) string { return "seeded: " + string(b) + " is on" }

// Bugs of the relay.
const (
	RelayCursor               Bug = "relay-cursor-past-late-commits"
	RelayTransactionOrder     Bug = "relay-order-by-transaction"
	RelaySettleWithoutFence   Bug = "relay-settle-without-fence"
	RelaySettleClearsJournal  Bug = "relay-settle-clears-the-journal"
	RelayClaimInOneStatement  Bug = "relay-claim-in-one-statement"
	RelayNoBarrier            Bug = "relay-publish-before-the-barrier"
	RelayWarningIgnored       Bug = "relay-barrier-warning-ignored"
	RelayRefusedDropped       Bug = "relay-refused-event-dropped"
	RelayFloorTrustsSequence  Bug = "relay-floor-trusts-the-sequence"
	RelayFloorKept            Bug = "relay-floor-kept-over-a-reconnect"
	RelayJournalNumberedAnew  Bug = "relay-journal-numbered-anew"
	RelayJournalSortedByID    Bug = "relay-journal-sorted-by-id"
	RelayBlockReused          Bug = "relay-block-of-an-older-fence"
	RelayParkWithoutMark      Bug = "relay-park-lets-the-key-pass"
	RelayUnknownCommitKnown   Bug = "relay-unknown-commit-taken-for-known"
	RelayHostClock            Bug = "relay-lease-by-the-hosts-clock"
	RelayReleasedWhileBusy    Bug = "relay-lane-released-while-busy"
	RelayNewerPastHeld        Bug = "relay-newer-past-held"
	RelayTakeOverWithoutFence Bug = "relay-take-over-without-fence"
	RelayOvertakenAccepted    Bug = "relay-overtaken-event-accepted"

	RelayWALConfirmsEarly Bug = "relay-wal-confirms-before-acked"
	RelayWALKeepalive     Bug = "relay-wal-keepalive-confirms"
	RelayWALDeletesEarly  Bug = "relay-wal-deletes-before-acked"
	RelayWALStandbyReads  Bug = "relay-wal-standby-does-not-wait"
	RelayWALUnfiltered    Bug = "relay-wal-hand-over-without-its-snapshot"
	RelayWALSameNumbering Bug = "relay-wal-lanes-given-back-in-the-same-numbering"
	RelayWALNumbersAnew   Bug = "relay-wal-numbers-anew-after-a-drop"
)
