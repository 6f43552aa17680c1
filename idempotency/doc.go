// Package idempotency makes a request that is sent twice happen once: HTTP requests with an Idempotency-Key, and calls to
// providers whose outcome may be unknown.
//
// A [Key] names an intent, a [Request] adds the fingerprint of the validated command, and a [Store] remembers per key what
// became of it: the first caller claims the key and works under a lease, every later one is told the same result, or that
// the work is under way, or that nobody knows its outcome yet, or that the key was used for something else.
//
// Remembering is all that a key does. Work that lives in one Postgres transaction belongs into pgstore's InTx, where key and effect
// commit together; everything else, above all a call to a provider, may have happened although nobody heard of it.
// That is why the end of a lease never frees a key: it makes the outcome unknown, and recovery asks the provider.
package idempotency
