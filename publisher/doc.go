// Package publisher sends events to Kafka and returns a verdict for each.
//
// [Kafka] always writes with acks=all. Over all concurrent calls each partition has at most one request in flight, and
// a batch is acknowledged before the partition's next one is sent. So the first occurrences of a partition's events are
// in the log in the order in which they were passed to Publish, whatever fails and is sent again.
//
// A verdict is one of:
//
//   - nil: all in-sync replicas have the event;
//   - an [outcome.Refusal]: refused for certain, not written; the event, or the whole topic. One for a changed
//     partition count wraps a [PartitionsChangedError];
//   - any other error: unknown. Send the same event again. After [outcome.Retryable] it was certainly not sent by this
//     call, but may have been by an earlier one.
//
// The partition of an event is murmur2(key) modulo the pinned partition count, with the sign bit cleared, as in the
// Java client's default partitioner. For an event without a key the canonical 36-character text of its id is hashed
// instead.
//
// Duties of the caller:
//
//  1. Pass the events of one key in order, and a later one only once the earlier ones have their verdicts.
//  2. Send an event with an unknown outcome again, unchanged, with a backoff: Publish repeats a request only a
//     few times.
//  3. Do not change events or their payloads while Publish runs; afterwards they are the caller's again.
package publisher
