// Package watermill joins effectonce to programs that are written with Watermill (github.com/ThreeDotsLabs/watermill),
// on both sides. Programs that do not use Watermill do not compile it.
//
//   - [NewOutbox] is a message.Publisher that appends to the outbox in the transaction of the business change. It takes
//     the place of Watermill's forwarder over a publisher of watermill-sql: the relay publishes what was committed, in
//     order per key.
//   - [NewPublisher] puts any message.Publisher behind the relay, for brokers that effectonce has no publisher of its
//     own for.
//   - [NewInbox] runs a handler of Watermill's router inside the transaction that records the message's id: its effect
//     happens once, and the message is acknowledged when both are committed.
//
// # What becomes of a message
//
// An event that was made of a message has these fields, and is made a message again without loss:
//
//	Topic        the topic that it is published to
//	ID           the message's UUID; when that is none, the UUIDv5 of it; when it is empty, a new UUIDv7
//	Key          what the Key function of the config says; by default the metadata "partition_key" ([MetadataKey])
//	Type         the metadata "ce_type"; else "name", which Watermill's package cqrs sets; else OutboxConfig.Type
//	Source       the metadata "ce_source"; else the Appender's
//	Tenant       the metadata "ce_tenant"
//	Time         the metadata "ce_time" (RFC 3339)
//	ContentType  the metadata "content-type"
//	NotBefore    the metadata "_watermill_delayed_until", which Watermill's package delay sets
//	Headers      all other metadata, and the message's UUID as "_watermill_message_uuid" ([MetadataUUID])
//
// The last is the header in which watermill-kafka keeps the UUID: its subscribers read what our relay wrote to Kafka as
// if its own publisher had. Other metadata beginning with "ce_" or "effectonce_" is refused, for the relay writes these
// headers itself. A UUIDv7 (event.NewID().String()) is the best UUID for a message: inboxes drop its day as a whole,
// while all others are removed row by row.
//
// # Traces
//
// What a message's context says of a trace goes into the event's headers, and from there into the message that a
// subscriber gets, as the metadata "traceparent". No other value of a context crosses: neither the producer's nor the
// relay's.
package watermill
