package failpoint

import "slices"

// All lists every point. Tests enumerate it: a point that is added here is killed at, and must be reached.
func All() []Point {
	return slices.Concat(producing(), relaying(), keeping(), following(), consuming(), setAside(), maintaining())
}

func producing() []Point {
	return []Point{
		{OutboxInsert, "events are checked and not yet sent to the database", true},
		{OutboxInserted, "events are inserted in the producer's transaction, which is open", true},
		{ProducerCommit, "a producer is about to commit (only in the tests' producers)", false},
		{ProducerCommitted, "a producer's commit has returned (only in the tests' producers)", false},
	}
}

func relaying() []Point {
	return []Point{
		{RelayClaim, "a claim is about to be sent; an error is a COMMIT that was never sent", true},
		{RelayClaimLocked, "a claim has its lanes' locks, by the answer; the answer to COMMIT is not read", true},
		{RelayClaimRead, "a claim has rows; the answer to COMMIT is not read", true},
		{RelayJournal, "a claim has read many rows and is about to journal them and to commit; an error is a COMMIT that was never sent", true},
		{RelayDueMoved, "a claim has moved scheduled events into the outbox; the answer to COMMIT is not read", true},
		{RelayUnmarked, "a claim has removed the mark of a released key; the answer to COMMIT is not read", true},
		{RelayClaimCommitted, "a claim is committed and durable, and nothing else has happened; an error is a lost answer", true},
		{RelayDueCommitted, "a claim that moved scheduled events is committed", false},
		{RelayReleaseClaimed, "a claim that took from the lists of released keys is committed", false},
		{RelayIncarnation, "a new incarnation is about to be written", false},
		{RelayIncarnationRaised, "a new incarnation is committed; an error is a lost answer", true},
		{RelayBarrier, "the barrier is passed: the claim's events may be published, and none is", false},
		{RelayPin, "a topic's partition count is about to be pinned", false},
		{RelayPinned, "a topic's partition count is pinned; an error is a lost answer", true},
		{PublisherSend, "a produce request is about to be written", false},
		{PublisherSent, "a produce request is written and its answer is not read (plaintext connections); an error cuts the connection", true},
		{PublisherAcked, "one partition has acked; an error is a lost answer", true},
		{RelayPublished, "every partition of an attempt has answered", false},
		{RelaySettle, "a settle is about to be sent; an error is a COMMIT that was never sent", true},
		{RelayHold, "a settle that holds events is about to be sent", false},
		{RelayPark, "a settle that parks events is about to be sent", false},
		{RelaySettleMoved, "a settle has deleted or moved its rows; the answer to COMMIT is not read", true},
		{RelaySettled, "a settle is committed; an error is a lost answer", true},
		{RelayHeld, "a settle that holds events is committed", false},
		{RelayParked, "a settle that parks events is committed", false},
		{RelayDrained, "a settle of held events that were published is committed", false},
		{RelayReleased, "a settle of released events that were published is committed", false},
		{RelayClosed, "a partition or topic is held from now on, and nothing has moved", false},
		{RelayTry, "the first held event of a place is noted as sent, and not sent", false},
		{RelayTried, "the first held event of a place was sent", false},
		{RelayReopened, "a place answers again, and nothing is drained", false},
	}
}

func keeping() []Point {
	return []Point{
		{RelayBeat, "a heartbeat is about to be sent", false},
		{RelayFenceRaise, "a heartbeat that raises fences after an unknown outcome is about to be sent", false},
		{RelayBeaten, "a heartbeat is committed; an error is a lost answer", true},
		{RelayFenceRaised, "raised fences are committed", false},
		{RelayTakeOver, "a take-over of free lanes is about to be sent", false},
		{RelayTakenOver, "a take-over is committed and nothing is claimed; an error is a lost answer", true},
		{RelayGiveLanes, "lanes are about to be given back", false},
		{RelayLanesGiven, "lanes are given back; an error is a lost answer", true},
		{RelayResign, "a relay that drained is about to leave", false},
		{RelayResigned, "a relay has left the members; an error is a lost answer", true},
		{RelayFloor, "the floors of lanes were raised", false},
		{RelayArchive, "a day of the archive is made or dropped in an open transaction", true},
		{RelayArchiveMade, "a day of the archive is made", false},
		{RelayArchiveDrop, "a day of the archive is dropped", false},
		{RelayArchiveClean, "the archive's default partition was cleaned", false},
		{RelayOperate, "an operator's change and its audit stand in an open transaction", true},
		{RelayOperated, "an operator's change is committed; an error is a lost answer", true},
		{RelayReplayed, "a batch of a replay is committed; an error is a lost answer", true},
	}
}

// following are the points of a relay that reads the WAL.
func following() []Point {
	return []Point{
		{RelayWALAbandoned, "a slot cannot be used, its lanes are given back to the table, and no other slot is made", false},
		{RelayWALSlot, "a slot is about to be made", false},
		{RelayWALSlotMade, "a slot is made and noted; an error is a lost answer", true},
		{RelayWALBegun, "the stream has begun, and lanes that came from the WAL before are taken over", false},
		{RelayWALHandOver, "lanes are empty and about to be handed over to the WAL", false},
		{RelayWALHandedOver, "lanes are handed over to the WAL; an error is a lost answer", true},
		{RelayWALRead, "events are read from the WAL, and none is published", false},
		{RelayWALPublished, "events from the WAL are published, and none is deleted", false},
		{RelayWALAside, "what was published of lanes is deleted, and they are about to be given back to the table", false},
		{RelayWALSetAside, "lanes are given back to the table; an error is a lost answer", true},
		{RelayWALDelete, "published events are about to be deleted; an error is a COMMIT that was never sent", true},
		{RelayWALDeleted, "published events are deleted, and their place is not confirmed; an error is a lost answer", true},
		{RelayWALConfirm, "a place is about to be written down as confirmed", false},
		{RelayWALConfirmed, "a place is written down as confirmed, and the slot is not told; an error is a lost answer", true},
		{RelayWALFinish, "everything is deleted, and every lane is about to be given back in order", false},
		{RelayWALFinished, "every lane is given back in order, and the slot is not told; an error is a lost answer", true},
	}
}

func consuming() []Point {
	return []Point{
		{ConsumerAssigned, "a consumer was given partitions", false},
		{ConsumerFetched, "records are fetched and decoded", false},
		{ConsumerHandle, "a batch is about to be handed over", false},
		{ConsumerHandled, "the handler has returned, and the position has not moved", false},
		{ConsumerOffsetCommit, "offsets are about to be committed", false},
		{ConsumerOffsetCommitted, "offsets are committed; an error is a lost answer", true},
		{InboxRange, "the offset range of a batch is about to be written", false},
		{InboxRangeWritten, "the offset range of a batch is written; an error is a lost answer", true},
		{InboxCount, "a counted run is about to be counted", false},
		{InboxCounted, "a counted run is counted; an error is a lost answer", true},
		{InboxUncount, "the count of a run that was outlived is about to be taken back", false},
		{InboxUncounted, "the count of a run is taken back; an error is a lost answer", true},
		{InboxInserted, "ids are inserted in the deciding transaction, which is open", true},
		{InboxSetAside, "what waits behind a mark or is quarantined is listed in the open transaction", true},
		{InboxEffect, "the effect is about to run", false},
		{InboxEffected, "the effect has run in the open transaction", false},
		{InboxPassed, "the progress has moved in the open transaction", true},
		{InboxCommit, "the deciding transaction is about to be committed; an error is a COMMIT that was never sent", true},
		{InboxCommitted, "the deciding transaction is committed; an error is a lost answer", true},
	}
}

func setAside() []Point {
	return []Point{
		{InboxPark, "an event that finally failed is about to be parked", false},
		{InboxParkMarked, "its key is marked and the mark is held, in the open transaction", true},
		{InboxParkListed, "it stands in the list, in the open transaction", true},
		{InboxParkForgotten, "its id row is gone again, in the open transaction", true},
		{InboxParked, "it is parked, and the commit has returned", false},
		{InboxHalted, "a halt is written down", false},
		{InboxReleaseCounted, "a release is counted and committed, or an empty mark is gone; an error is a lost answer", true},
		{InboxReleaseLocked, "the mark or row of a release is locked, in the open transaction", true},
		{InboxReleaseInserted, "the id of a released event is inserted, in the open transaction", true},
		{InboxReleaseEffected, "the effect of a released event has run, in the open transaction", false},
		{InboxReleaseLeft, "a released event has left its list, in the open transaction", true},
		{InboxReleased, "a released event is decided and committed", false},
		{InboxUnmarked, "the mark of an empty list is removed, in the open transaction", true},
		{InboxFailAgain, "a mark is turned back to parked, in the open transaction", true},
		{InboxFailedAgain, "a failed release is parked again and committed", false},
		{InboxOperate, "an operator's change and its audit stand in an open transaction", true},
		{InboxOperated, "an operator's change is committed; an error is a lost answer", true},
	}
}

func maintaining() []Point {
	return []Point{
		{InboxDayMade, "a day is made, in an open transaction", true},
		{InboxDaysMade, "missing days are made and committed; an error is a lost answer", true},
		{InboxRaise, "dropped_before is raised, in an open transaction", true},
		{InboxRaised, "dropped_before is raised and committed, and nothing is dropped; an error is a lost answer", true},
		{InboxDetach, "a day is about to be detached", false},
		{InboxDetached, "a day is detached and not dropped; an error is a lost answer", true},
		{InboxDayDropped, "a day is dropped; an error is a lost answer", true},
		{InboxClean, "old ids are deleted from inbox_message_any, in an open transaction", true},
		{InboxCleaned, "old ids are deleted and committed", false},
		{InboxListsMeasured, "full lists are marked", false},
	}
}
