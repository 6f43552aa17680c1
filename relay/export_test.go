package relay

// Queries are prepared by a test against the migrated schema.
var Queries = map[string]string{
	"begin": sqlBegin, "commit": sqlCommit, "settings": sqlSettings, "lock": sqlLock, "reserve": sqlReserve, "meta": sqlMeta,
	"raiseIncarnation": sqlRaiseIncarnation, "open": sqlOpen, "take": sqlTake, "settle": sqlSettle, "probe": sqlProbe,
	"join": sqlJoin, "prune": sqlPrune, "members": sqlMembers, "renew": sqlRenew, "takeOver": sqlTakeOver,
	"release": sqlRelease, "leave": sqlLeave, "pin": sqlPin, "statusLanes": sqlStatusLanes, "statusTopics": sqlStatusTopics,
	"backlog": sqlBacklog,
}
