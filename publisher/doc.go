// Package publisher sends events to Kafka and says, event by event, what became of them.
//
// [Kafka] writes with acks=all and nothing else, one request in flight per topic and partition over all concurrent
// calls, and a whole batch is acknowledged before the next one of its partition is sent. So the first occurrences of
// the events of a partition stand in the log in the order in which they were given, whatever fails and is sent again.
//
// A verdict is one of three:
//
//   - nil: all in-sync replicas have the event;
//   - an error whose Rejected method answers true ([Rejection], [PartitionsChangedError]): refused for certain, not
//     written. Its Scope method says how far the refusal reaches: "record" or "topic";
//   - any other error: unknown. Send the same event again. One that matches [ErrNotSent] was certainly not sent by this
//     call, but may have been by an earlier one.
//
// The partition of an event is murmur2(key) modulo the pinned partition count, with the sign bit cleared: what the Java
// client's default partitioner does. An event without a key takes the canonical 36-character text of its id instead.
//
// Duties of the caller:
//
//  1. Give the events of one key in order, and give no later one before the earlier ones have their verdict.
//  2. Send again what is unknown, as it was, with a backoff: Publish repeats a request only a few times.
//  3. Do not change events or their payloads while Publish runs; afterwards they are the caller's again.
package publisher
