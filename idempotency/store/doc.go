// Package store is what a store of idempotency keys has to do, and what it keeps: [Store] for the guard, [Recoverer]
// for the recovery worker, [Lister] for people's tools.
//
// Who only serves requests does not need it. Who writes a store has idempotencytest.Run examine it.
package store
