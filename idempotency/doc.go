// Package idempotency makes a request that is sent twice happen once: HTTP requests with an Idempotency-Key, and calls
// to providers whose outcome may be unknown.
//
// A first endpoint does its work in one Postgres transaction, by the method InTx of a pgstore.Store. The key, the row
// and the answer commit together; a retry gets the answer, and runs nothing:
//
//	key := idempotency.Key{Tenant: tenant, Operation: "payment.create", Value: value}
//	req, err := idempotency.NewRequest(key, command)
//	res, err := store.InTx(ctx, req, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
//		... // insert the payment with tx
//		return idempotency.Result{Code: 201, Body: body}, nil
//	})
//
// It needs these names:
//
//   - [Key]: who asks, for which operation, and the key that the client sent.
//   - [NewRequest]: the [Request] of a key and the validated command. The same key with another command is refused.
//   - [Result]: the answer, which every retry gets too.
//   - [Retention]: how long answers and keys are kept; by default 24 and 72 hours.
//   - [Terminal], [Retryable], [OutcomeUnknown]: what an error says of the work. Terminal is a final refusal, kept and
//     replayed like an answer; after Retryable nothing has happened, and the key is free; after OutcomeUnknown the work
//     may have happened, and nobody runs it again blindly.
//   - [ErrMismatch], [ErrInProgress], [ErrUnknown], [ErrExpired], [ErrInvalidKey]: why a caller gets no result. Package
//     httpedge makes HTTP answers of them.
//
// Other packages have the rest:
//
//   - keys: how the value of a key is made and checked.
//   - guard: work that is not one transaction of the store, above all calls to providers; recovery asks the providers.
//   - pgstore, redisstore, dynamostore, memstore: the stores; idempotencytest examines others.
//   - store: what a store has to do.
//   - httpedge and client: the two ends of HTTP.
//
// Work outside of the store's transaction may have happened although nobody heard of it. That is why the end of a lease
// never frees a key: it makes the outcome unknown, and recovery asks the provider.
package idempotency
