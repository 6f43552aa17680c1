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
//   - [Key]: the caller, the operation, and the key that the client sent.
//   - [NewRequest]: the [Request] of a key and the validated command. The same key with another command is refused.
//   - [Result]: the answer, which every retry gets too.
//   - [Retention]: how long answers and keys are kept; by default 24 and 72 hours.
//   - [outcome.Terminal], [outcome.Retryable], [outcome.Unknown]: mark an error of the work. After Terminal the effect
//     is rolled back, and the Result that was returned with the error, with the code as its Failure, is kept and
//     replayed: InTx and guards return it and no error, to the first caller too. After Retryable the key is released.
//     After Unknown the work is not repeated until recovery has found out what happened.
//   - [ErrMismatch], [ErrInProgress], [ErrUnknown], [ErrExpired], [ErrInvalidKey]: the reasons for no result. Package
//     httpedge turns them into HTTP answers.
//
// Other packages have the rest:
//
//   - keys: making and checking the values of keys.
//   - guard: work that is not one transaction of the store, above all calls to providers.
//   - recovery: operations whose outcome is unknown.
//   - pgstore, redisstore, dynamostore, memstore: the stores; idempotencytest tests others.
//   - store: the interface of a store.
//   - httpedge and client: the two ends of HTTP.
//
// Work outside the store's transaction may have happened although its owner died. So the end of a lease never releases
// a key: it makes the outcome unknown, and recovery asks the provider.
package idempotency
