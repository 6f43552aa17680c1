package relay

import (
	"slices"
	"strings"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// Queries are prepared by a test against the migrated schema.
var Queries = map[string]string{
	"begin": sqlBegin, "commit": sqlCommit, "settings": sqlSettings, "lock": sqlLock, "reserve": sqlReserve, "meta": sqlMeta,
	"raiseIncarnation": sqlRaiseIncarnation, "open": sqlOpen, "take": sqlTake, "settle": sqlSettle, "probe": sqlProbe,
	"join": sqlJoin, "prune": sqlPrune, "members": sqlMembers, "renew": sqlRenew, "takeOver": sqlTakeOver,
	"release": sqlRelease, "leave": sqlLeave, "pin": sqlPin, "statusLanes": sqlStatusLanes, "statusTopics": sqlStatusTopics,
	"numbering": sqlNumbering, "pinned": sqlPinned, "sampleEvents": sqlSampleEvents, "sampleHeld": sqlSampleHeld, "sampleParked": sqlSampleParked, "sampleScheduled": sqlSampleScheduled,
	"sampleTopics": sqlSampleTopics, "sampleHorizon": sqlSampleHorizon, "highest": sqlHighest, "holders": sqlHolders, "smallest": sqlSmallest, "below": sqlBelow,
	"impatient": sqlImpatient, "lockLanes": sqlLockLanes, "knownIDs": sqlKnownIDs, "lastID": sqlLastID, "lockEvents": sqlLockEvents,
	"forward": sqlForward, "fence": sqlFence, "newIncarnation": sqlNewIncarnation, "epoch": sqlEpoch, "waiting": sqlWaiting,
	"archiveDays": sqlArchiveDays, "archiveLock": sqlArchiveLock, "cleanArchive": sqlCleanArchive, "replayPlan": sqlReplayPlan,
	"replayHead": sqlReplayHead, "replay": sqlReplay, "replayRoom": sqlReplayRoom,
	"listTopics": sqlListTopics, "pause": sqlPause, "resume": sqlResume, "uncertain": sqlUncertain, "accept": sqlAccept,
	"untry": sqlUntry, "paused": sqlPaused, "settleArchived": sqlSettleArchived, "settleAckedArchived": sqlSettleAckedArchived,
	"scheduled": sqlScheduled, "cancel": sqlCancel,
	"due": sqlDue, "moveDue": sqlMoveDue, "statusScheduled": sqlStatusScheduled,
}

// OrderByTransaction makes a relay claim in the order of (transaction id, id), as cursors over transaction ids do: a
// seeded bug, to show that the tests of order can fail.
func OrderByTransaction(r *Relay) {
	q := *r.q
	byTransaction := strings.NewReplacer(
		"order by e.id", "order by e.xmin::text::bigint, e.id",
		"select e.lane, e.id,", "select e.lane, e.xmin::text::bigint as xid, e.id,",
		// The relay numbers in this order.
		"select lane, id, message_id", "select lane, xid * 1000000000 + id, message_id",
		"select lane, id, marked, message_id", "select lane, xid * 1000000000 + id, marked, message_id",
	)
	q.take, q.takeMarked = byTransaction.Replace(q.take), byTransaction.Replace(q.takeMarked)
	r.q = &q
}

// Expanded is a query for the connection's own search_path.
func Expanded(query string) string { return pgschema.Expand(Queries[query], "") }

// LowestFloor is the lowest of the floors of a relay's lanes.
func LowestFloor(r *Relay) int64 {
	_, floors, _ := r.lanes.listFloors(func(*laneState) bool { return true })
	if len(floors) == 0 {
		return 0
	}
	return slices.Min(floors)
}

// WaitForNobody makes a relay lift its floors without waiting for open transactions: a seeded bug, to show that the tests
// of the floor can fail.
func WaitForNobody(r *Relay) {
	q := *r.q
	q.holders += " and false"
	r.q = &q
}
