// Package keys has strategies for making and checking the values of idempotency keys:
//
//   - random: [NewV4], the default.
//   - with a time, so that an old key can be refused: [NewV7] or a ULID, and a [Window].
//   - derived from the intent: [Intent].
//   - short numbers from many processes: [HiLo].
//   - consecutive numbers of one source, stored in one row: [Watermark].
//   - with a home region: [Regions].
//
// Each one's documentation says when to choose it, its cost and its trap.
package keys
