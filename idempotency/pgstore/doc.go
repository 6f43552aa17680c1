// Package pgstore remembers idempotency keys in Postgres.
//
// [Store.InTx] is what it is for: the key, the handler's rows and its outbox events are one transaction. Nothing can
// happen between them, so there is no lease, no unknown outcome and no recovery:
//
//	res, err := store.InTx(ctx, request, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
//		... insert the payment, append the event ...
//		return idempotency.Result{Code: 201, Resource: id, Body: body}, nil
//	})
//
// A [Store] is also an store.Store and Recoverer, for work with provider calls, which cannot be in a transaction. Both
// use one table, and the same key may come by either way.
//
// The table is made by migrations (the set Idempotency), in the schema of Config. Everything runs READ COMMITTED on the
// primary; a replica does not know what was claimed a moment ago.
package pgstore
