// Package consumer reads topics as a member of a Kafka consumer group and passes their events to an [inbox.Handler].
// It fetches records, calls the handler, and then commits the offset.
//
// The package guarantees:
//
//  1. A committed offset never passes an undecided event. A member commits only the decided head of a batch, and only
//     in the generation that fetched it. A member that lost a partition cannot advance the group's offset.
//  2. Every record is delivered at least once. One goroutine delivers the records of a partition, in log order;
//     partitions run concurrently. Events that were decided but not yet committed are delivered again, and the inbox
//     drops them.
//  3. A partition whose event keeps failing halts alone, and reports it to the log, the [Observer] and [Status]. The
//     other partitions and the group continue. The halted partition starts again at that event when an operator
//     resumes it, or when it is assigned again: after a restart, or to another member.
//  4. Records of aborted transactions and control records are not delivered. Offsets that compaction removed are
//     skipped. Malformed bytes never cause a panic: they become an event, or they halt their partition.
//  5. The consumer waits for an unreachable Kafka, with backoff and jitter. It logs the start and the end of an outage
//     once each.
//  6. Memory is bounded: see FetchBytes and BufferBytes of [Config]. The bound counts the memory of a record's event,
//     not only the record's bytes. A record with more than [event.MaxHeaders] headers halts its partition.
//
// The application must:
//
//  1. Create the topics first. The consumer logs a missing topic as an error, waits for it, and consumes the others.
//  2. Return from the handler soon after its ctx ends. If a handler does not return, another member gets its partition.
//     Whatever the handler still does must be harmless when done twice.
//  3. Keep an event's Payload no longer than needed: it shares memory with the records of the same fetch. Clone a
//     payload to keep it.
//  4. Retain records in Kafka for longer than the longest outage of the group. The consumer reports the exact range
//     that retention removed unread, but cannot read it (OnLost of [Config]).
//
// A rebalance stops only the partitions that move while all members support cooperative-sticky assignment, as Kafka's
// Java client does. If a member does not, the group uses an eager protocol (range or roundrobin). InstanceID of
// [Config] makes a member static: it keeps its partitions over a restart.
//
// Limits: record formats older than Kafka 0.11 halt their partition.
package consumer
