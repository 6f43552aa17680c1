// Package dynamostore stores idempotency keys in DynamoDB, which writes to disks in three zones before it replies: no
// failover within a region loses a key.
//
// Every write is one conditional write that compares the holder's token and fence, and every read is strongly
// consistent. If the SDK loses the reply to a write and retries it, the condition fails: the item that the failure
// returns has the attempt's own token, so the store recognises the success.
//
// DynamoDB's conditions cannot read a clock. The store takes the server's time from the Date of its responses and the
// machine's monotonic clock, never from the host's wall clock. Date has whole seconds, so the time is an interval: up
// to a second wide without traffic, some milliseconds and Config.Skew wide with traffic. Leases are set by its latest
// time and compared with its earliest: a lease is never shorter than asked, and up to the interval's width longer.
//
// Keep the table in one region, or in a global table with multi-region strong consistency. Check refuses an eventually
// consistent one: there two regions can win the same key.
package dynamostore
