// Package redisstore keeps idempotency keys in Redis: an execution guard, fast and shared, that can forget.
//
// While one primary lives, every promise of store.Store holds: each write compares the holder's token and fence in the
// one Lua script that writes, by the server's clock, and a reply that was lost is recognised by its token.
//
// What Redis acknowledged it may still lose: a replica is promoted without the last writes (replication is
// asynchronous, and min-replicas-to-write only narrows that), or a crash takes what appendfsync had not flushed (up to
// a second with everysec, nothing with always). A key that is forgotten is free, and its work runs a second time. So
// this store narrows duplicates; what makes the effect one is a business key downstream, or a fence that the sink
// compares, or pgstore in the effect's own transaction. Check refuses a server that evicts keys, which is forgetting as
// a habit.
package redisstore
