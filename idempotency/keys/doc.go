// Package keys has strategies to make and check the values of idempotency keys:
//
//   - random: [NewV4], the default.
//   - with a time, so that an old key can be refused: [NewV7] or a ULID, and a [Window].
//   - derived from the intent: [Intent].
//   - short numbers, made by many processes: [HiLo].
//   - consecutive numbers of one source, stored in one row: [Watermark].
//   - with a home region: [Regions].
//
// The documentation of each says when to choose it, what it costs, and its trap.
package keys
