package relay

import "strings"

// Queries are prepared by a test against the migrated schema.
var Queries = map[string]string{
	"begin": sqlBegin, "commit": sqlCommit, "settings": sqlSettings, "lock": sqlLock, "reserve": sqlReserve, "meta": sqlMeta,
	"raiseIncarnation": sqlRaiseIncarnation, "open": sqlOpen, "take": sqlTake, "settle": sqlSettle, "probe": sqlProbe,
	"join": sqlJoin, "prune": sqlPrune, "members": sqlMembers, "renew": sqlRenew, "takeOver": sqlTakeOver,
	"release": sqlRelease, "leave": sqlLeave, "pin": sqlPin, "statusLanes": sqlStatusLanes, "statusTopics": sqlStatusTopics,
	"backlog": sqlBacklog, "numbering": sqlNumbering, "pinned": sqlPinned,
}

// OrderByTransaction makes a relay claim in the order of (transaction id, id), as cursors over transaction ids do: a
// seeded bug, to show that the tests of order can fail.
func OrderByTransaction(r *Relay) {
	q := *r.q
	q.take = strings.NewReplacer(
		"order by e.id", "order by e.xmin::text::bigint, e.id",
		"select e.lane, e.id,", "select e.lane, e.xmin::text::bigint as xid, e.id,",
		"select lane, id, message_id", "select lane, xid * 1000000000 + id, message_id", // the relay numbers in this order
	).Replace(q.take)
	r.q = &q
}
