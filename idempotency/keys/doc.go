// Package keys has the strategies by which the value of an idempotency key is made and checked:
//
//   - random: [NewV4], the default.
//   - with its time in it, so that an old one is refused: [NewV7] or a ULID, and a [Window].
//   - derived from the intent: [Intent].
//   - short numbers of many processes: [HiLo].
//   - consecutive numbers of one source, in one row: [Watermark].
//   - with its home region in it: [Regions].
//
// The documentation of each says when to choose it, what it costs, and its trap.
package keys
