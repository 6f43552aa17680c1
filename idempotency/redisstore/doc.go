// Package redisstore stores idempotency keys in Redis. It is fast, but a failover or a crash can lose keys.
//
// As long as one primary lives, every promise of store.Store holds. Each write is a Lua script that compares the
// holder's token and fence and uses the server's clock; a call that is sent again after a lost reply is recognised by
// its token.
//
// Redis may lose acknowledged writes. A replica may be promoted without the last ones: replication is asynchronous, and
// min-replicas-to-write only narrows the gap. A crash loses what appendfsync has not flushed: up to a second with
// everysec, nothing with always. A lost key is free, and its work runs a second time. So this store only makes
// duplicates rare; a business key downstream, a fence that the sink compares, or pgstore in the effect's own
// transaction prevents them. Check refuses a server that evicts keys.
package redisstore
