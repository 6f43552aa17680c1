// Package pgstore stores idempotency keys in Postgres.
//
// [Store.InTx] commits the key, the handler's rows and its outbox events in one transaction. They commit together or
// not at all, so there is no lease and no recovery:
//
//	res, err := store.InTx(ctx, request, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
//		... insert the payment, append the event ...
//		return idempotency.Result{Code: 201, Resource: id, Body: body}, nil
//	})
//
// A [Store] is also a store.Store and a store.Recoverer, for work that calls a provider, which no transaction covers.
// Both ways use one table, and both may be used with the same key.
//
// The migration set Idempotency creates the table, in the schema of Config. Everything runs READ COMMITTED on the
// primary: a replica may lag behind the latest claims.
package pgstore
