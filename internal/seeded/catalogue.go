package seeded

// Info is what there is to say of a bug.
type Info struct {
	Bug Bug
	// Wrong says what the program does with the bug, and what comes of it for whoever uses it.
	Wrong string
}

// All lists every bug, in the order of their rooms.
func All() []Info {
	return []Info{
		{RelayCursor, "a lane is read from the last id seen: an event that commits late under a lower id is never published"},
		{RelayTransactionOrder, "events are claimed in the order of transaction ids: changes of one key reach Kafka in the wrong order"},
		{RelaySettleWithoutFence, "a settle does not compare owner and fence: a zombie decides what its heir is publishing"},
		{RelaySettleClearsJournal, "a settle deletes all entries of its lane: what another claim has under way is sent again under new numbers"},
		{RelayClaimInOneStatement, "a claim locks and reads in one statement: rows that were deleted while it waited are published"},
		{RelayNoBarrier, "a claim's commit does not wait for the disk: after a crash, Kafka has events that never happened"},
		{RelayWarningIgnored, "a cancelled wait for the standby counts as a commit: after a failover, Kafka has events that never happened"},
		{RelayRefusedDropped, "an event that the broker refuses counts as published: it is lost"},
		{RelayFloorTrustsSequence, "a floor rises to the last id drawn, whoever is still open: events that commit late are hidden"},
		{RelayFloorKept, "floors survive a new connection, perhaps to a restored server: its events below them are hidden"},
		{RelayJournalNumberedAnew, "a take-over numbers the open entry's events anew: consumers that compare numbers apply them twice"},
		{RelayJournalSortedByID, "an open entry is sent in the order of ids: numbers change their events, and held events their order"},
		{RelayBlockReused, "a lane that comes back goes on in its old block of numbers: numbers go back, and consumers drop what is new"},
		{RelayParkWithoutMark, "a refused event parks without a mark on its key: the key's later events pass it"},
		{RelayUnknownCommitKnown, "after a COMMIT whose reply was lost the lane goes on under its fence: what happens late parks what was sent, or re-uses numbers"},
		{RelayHostClock, "the host's clock judges leases, and is two hours ahead: lanes are taken from relays that live"},
		{RelayReleasedWhileBusy, "a lane is given away while its events are being published: two relays send it at the same time"},
		{RelayNewerPastHeld, "new events of a partition are sent while older ones are held for it: keys are reordered"},
		{RelayTakeOverWithoutFence, "a take-over leaves the fence: an owner that comes back cannot be told from one that never left"},
		{RelayOvertakenAccepted, "what is held behind later events of its own claim does not count as uncertain: after a resize, consumers that compare numbers drop it"},
		{RelayWALConfirmsEarly, "a transaction's place is confirmed before its events are acked: after a crash, the rest of them does not come again"},
		{RelayWALKeepalive, "what the server says in a keepalive is confirmed: events that are not acked do not come again"},
		{RelayWALDeletesEarly, "rows are deleted before their events are acked: what is then refused, or was read by a slot that is lost, is gone"},
		{RelayWALStandbyReads, "a standby ends the connection of a relay that lives: the two take the slot from each other"},
		{RelayWALUnfiltered, "what was published from the table before a hand-over comes from the WAL once more, under other numbers"},
		{RelayWALSameNumbering, "lanes go back to the table with events that may have been written, in the same numbering: consumers that compare numbers apply them twice"},
		{RelayWALNumbersAnew, "a slot that is made anew begins at another base in the same numbering: numbers go back, and consumers drop what is new"},
	}
}
