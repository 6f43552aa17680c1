// Package httpedge is idempotency over HTTP: it reads the Idempotency-Key, and answers, replays or refuses, as
// draft-ietf-httpapi-idempotency-key-header-07 and RFC 9457 say.
//
// The handler comes first. It authenticates, validates, builds its command and only then asks for the key:
//
//	key, err := httpedge.Key(r) // 400 when it is missing or malformed; nothing was looked up
//	res, err := store.InTx(ctx, request, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
//		... // the business row and its event
//		return httpedge.JSON(http.StatusCreated, payment)
//	})
//	httpedge.Write(w, res, err) // the answer, the same again with Idempotent-Replayed: true, or a problem with a stable code
//
// [Edge] is the same with settings of your own. [Middleware] is for handlers that have no transaction to share, and
// says what it cannot promise. [Sealer] encrypts what is kept.
//
// A request that meets another attempt at work may wait for it, within a bound (a guard's Wait, pgstore's Wait), is
// told 409 with Retry-After, or, by [Edge.At], 202 with the operation-status resource that [Edge.StatusHandler] serves.
//
// What was answered is kept and given to the retry byte for byte: status, body, and the headers that belong to them.
// When what was made is changed or deleted before the retry comes, there are four ways, a choice per operation:
//
//   - strict: keep the body. The retry gets what the first caller got, whatever became of it since.
//   - state-aware: keep a reference ([idempotency.Result].Resource) and [Render] it; answer [NotFound], [Gone] or
//     [Changed].
//   - cascade: delete the key with the resource, in one transaction (pgstore.Store.Forget). A late retry then makes it
//     again: choose it only when that is what a retry after a deletion means.
//   - soft delete: the row stays, marked; Render shows it as deleted, or answers Gone.
package httpedge
