// Package idempotency makes a request that is sent twice happen once: HTTP requests with an Idempotency-Key, and calls
// to providers whose outcome may be unknown.
//
// A first endpoint, whose work is one Postgres transaction, needs these names, and pgstore's Store.InTx:
//
//   - [Key] names an intent of one principal.
//   - [NewRequest] makes the [Request] of a key and a validated command.
//   - [Result] is what the work returns, and every later caller is told.
//   - [Terminal] marks a final refusal, [Retryable] an error after which certainly nothing has happened, and
//     [OutcomeUnknown] one after which it may have.
//   - [Retention] is how long keys and results are remembered.
//
// Errors are told apart by errors.Is: [ErrMismatch], [ErrInProgress], [ErrUnknown], [ErrExpired] and [ErrInvalidKey].
// Package httpedge makes HTTP answers of them.
//
// The rest of the work with keys has packages of its own:
//
//   - keys: how the value of a key is made and checked.
//   - guard: work that is not one transaction of the store, above all calls to providers; recovery asks the providers.
//   - pgstore, redisstore, dynamostore, memstore: the stores; idempotencytest examines others.
//   - store: what a store has to do.
//   - httpedge and client: the two ends of HTTP.
//
// Remembering is all that a key does. Work that lives in one Postgres transaction belongs into pgstore's InTx, where
// key and effect commit together; everything else, above all a call to a provider, may have happened although nobody
// heard of it. That is why the end of a lease never frees a key: it makes the outcome unknown, and recovery asks the
// provider.
package idempotency
