//go:build !race

package relay

// modelRules are bugs. Each leaves out a rule of docs/protocol.md that was found by model checking, or that a test has
// broken on purpose before. The zero value is the correct relay. A bug of a statement changes the model's operation; a
// bug of the relay's code changes the state that the code leaves behind.
type modelRules struct {
	oneStatement        bool // P3.1: the claim reads its events in the statement that waits for the lane
	noFence             bool // P3.1: owner, but not fence, is compared
	resort              bool // P3.2: an open entry is sorted by id
	renumber            bool // P3.2: an open entry gets new numbers
	keepBlock           bool // P3.2: a block outlives its fence
	noBarrier           bool // P3.3: a claim does not wait for the disk
	sendAhead           bool // P3.4: n+1 is sent before n is acked
	clearJournal        bool // P3.5: a settle clears the lane's whole journal
	ghostSettles        bool // P3.5: a settle without its entry marks keys in spite of that
	settleOn            bool // P3.6: undecided events are settled as acked
	noTakenBack         bool // P3.6: a settle that a crash has undone is not noticed
	noRaise             bool // P3.7: after an unknown COMMIT the fence stays
	sendOn              bool // P4: after a refusal the rest of the lane and partition is sent
	noBehind            bool // P4: a parked key leaves its held events behind
	heldSent            bool // P4: an event of an open entry or of outbox_held counts as never sent
	intoOutbox          bool // P4: released rows go through the outbox again
	oldSeq              bool // P4: released rows keep old numbers
	blindUnmark         bool // P4: a mark is removed without the lane's lock and a second check
	noSortOut           bool // P4: held events are not sent first
	pauseLater          bool // P4: a claim ignores a pause that it has read
	sameFence           bool // P5: a take-over does not raise the fence
	noIncarnation       bool // P5: another system or timeline does not begin an incarnation
	noFenceAfterRestore bool // P5: a restored database is not fenced
	lazyFloor           bool // P6: the highest id is read by a COMMIT that does not wait for the disk
	noHolders           bool // P6: the highest id is taken for decided at once
	// P6: a floor follows a claim up to the id that is decided at its settle, not at its read
	lateDecided bool
	exceptSeen  bool // P6: a claim does not check whether it sees a transaction that its floor excepts
	cursor      bool // P2: rows are found by a cursor over ids
}
