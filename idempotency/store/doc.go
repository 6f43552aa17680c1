// Package store has the interfaces of a store of idempotency keys: [Store] for a guard, [Recoverer] for a recovery
// worker, [Lister] for tools of operators. Test your own store with idempotencytest.Run.
package store
