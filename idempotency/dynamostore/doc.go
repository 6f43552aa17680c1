// Package dynamostore keeps idempotency keys in DynamoDB. What it acknowledged is on disks in three zones before the
// reply, and no failover within a region forgets it.
//
// Every write is one conditional write that compares the holder's token and fence, and every read is strongly
// consistent. A write whose success the SDK did not hear of and sent again fails its condition the second time: the
// item that the failure returns has the attempt's own token, so the success is recognised.
//
// DynamoDB's conditions cannot read a clock. The store takes the server's time from the Date of its responses and
// carries it on with the machine's monotonic clock, never the host's wall clock. Date has whole seconds, so the time is
// known as an interval: up to a second wide on a store that is seldom used, some milliseconds and Config.Skew under
// traffic. Leases are set by its late end and judged by its early one: a lease is never shorter than asked, and seen to
// end up to the interval's width later.
//
// Keep the table in one region, or in a global table with multi-region strong consistency. In an eventually consistent
// global table two regions can both win a key, and the later write hides the other: Check refuses one.
package dynamostore
