// Package consumer reads topics as a member of a Kafka consumer group and hands their events to an [inbox.Handler]:
// fetch, handle, commit the offset, in that order.
//
// What it promises:
//
//  1. A committed offset never passes unfinished work. Only the decided head of a batch is committed, and only through
//     the generation that fetched it: a member that lost its partition cannot move the group's offset.
//  2. Every record is delivered at least once, those of a partition in log order and by one goroutine; partitions run
//     at the same time. What was decided and not yet committed is delivered again, which is what the inbox is for.
//  3. A partition whose event keeps failing halts alone and loudly (log, [Observer], [Status]); the others go on, and
//     so does the group. It starts again at that event when it is assigned anew: after a restart, or elsewhere.
//  4. Aborted transactions and control records of other producers are not delivered, gaps of compacted topics are
//     passed, and bytes that make no sense never panic: they become an event, or they halt their partition.
//  5. A Kafka that is away is waited for, with backoff and jitter, and said once when it goes and once when it is back.
//  6. Memory stays bounded: see [Config] FetchBytes and BufferBytes. A record that costs more than its bytes tell is
//     charged for what it costs; one with more than [event.MaxHeaders] headers halts its partition.
//
// What you must do:
//
//  1. Create the topics first. A missing topic is an error in the log and is waited for; the others are consumed
//     meanwhile.
//  2. Let the handler return soon after its ctx ends. Others are given the partition of one that does not, and what it
//     still does must be harmless twice.
//  3. Do not keep an event's Payload longer than you must: it shares memory with the records fetched beside it. Clone
//     what you keep.
//  4. Retain records in Kafka longer than the longest outage of this group: what retention removes unread is reported
//     with its exact range, but cannot be read any more ([Config] Lost).
//
// A rebalance stops only what moves: assignment is cooperative-sticky, as Kafka's Java client has it, while all members
// of the group know that, and one of the eager protocols (range, roundrobin) while a member does not. [Config]
// InstanceID makes static members, which a restart takes nothing from.
//
// Limits: record formats from before Kafka 0.11 halt their partition. With [StartLatest], a partition that is added
// later starts at its end, too.
package consumer
