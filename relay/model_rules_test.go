//go:build !race

package relay

// modelRules are bugs: each leaves out a rule of docs/protocol.md that was found by model checking, or that tests have
// broken on purpose before. The zero value is the relay as it is. A bug of a statement changes the model's operation; a
// bug of the relay's own code changes what that code left behind.
type modelRules struct {
	oneStatement        bool // P3.1: the claim reads its events in the statement that waits for the lane
	noFence             bool // P3.1: owner, but not fence, is compared
	resort              bool // P3.2: an open entry is sorted by id
	renumber            bool // P3.2: an open entry gets new numbers
	keepBlock           bool // P3.2: a block outlives its fence
	noBarrier           bool // P3.3: a claim does not wait for the disk
	sendAhead           bool // P3.4: n+1 is sent before n is acked
	clearJournal        bool // P3.5: a settle clears the lane's whole journal
	ghostSettles        bool // P3.5: a settle whose entry is gone marks keys all the same
	settleOn            bool // P3.6: what is not decided is settled as acked
	noTakenBack         bool // P3.6: a settle that a crash took back is not noticed
	noRaise             bool // P3.7: after an unknown commit the fence stays
	sendOn              bool // P4: after a refusal the rest of the lane and partition is sent
	noBehind            bool // P4: a parked key leaves its held events behind
	heldSent            bool // P4: what came from an open entry or from held counts as never sent
	intoOutbox          bool // P4: released rows go through the outbox again
	oldSeq              bool // P4: released rows keep old numbers
	blindUnmark         bool // P4: a mark goes without the lane's lock and a second look
	noSortOut           bool // P4: what is held does not go first
	pauseLater          bool // P4: a claim does not see a pause that it read
	sameFence           bool // P5: a take-over does not raise the fence
	noIncarnation       bool // P5: another system or timeline does not begin an incarnation
	noFenceAfterRestore bool // P5: nobody fences a restored database
	lazyFloor           bool // P6: the highest id is read by a commit that does not wait for the disk
	noHolders           bool // P6: the highest id is taken for decided at once
	// P6: a floor follows a claim up to what is decided when it is settled, and not when it read
	lateDecided bool
	exceptSeen  bool // P6: a claim does not ask whether it sees a transaction that its floor leaves out
	cursor      bool // P2: rows are found by a cursor over ids
}
