// Package httpedge makes HTTP handlers idempotent: it reads the Idempotency-Key, and answers, replays or refuses by
// draft-ietf-httpapi-idempotency-key-header-07 and RFC 9457.
//
// A handler first authenticates, validates and builds its command, and then uses the key:
//
//	key, err := httpedge.Key(r) // error: missing or malformed; nothing was looked up
//	res, err := store.InTx(ctx, request, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
//		... // the business row and its event
//		return httpedge.JSON(http.StatusCreated, payment)
//	})
//	httpedge.Write(w, res, err) // the answer, a replay of it with Idempotent-Replayed: true, or a problem with a stable code
//
// [Edge] has settings. [Middleware] is for handlers that cannot share a transaction with the key; see its limits.
// [Sealer] encrypts stored answers.
//
// A request during another attempt waits for a bounded time (a guard's Wait, pgstore's Wait), then gets 409 with
// Retry-After, or, with [Edge.At], 202 with the operation-status resource of [Edge.StatusHandler].
//
// A retry gets the first answer byte for byte: status, body, and the headers that belong to them. For a resource that
// is changed or deleted before the retry, choose per operation:
//
//   - strict: store the body. The retry gets the first answer, whatever the resource's state.
//   - state-aware: store a reference ([idempotency.Result].Resource) and [Render] it; answer [NotFound], [Gone] or
//     [Changed].
//   - cascade: delete the key with the resource, in one transaction (pgstore.Store.Forget). A late retry then creates
//     it again.
//   - soft delete: mark the row as deleted; Render shows that, or answers Gone.
package httpedge
