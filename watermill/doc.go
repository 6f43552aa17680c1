// Package watermill connects effectonce to programs that use Watermill (github.com/ThreeDotsLabs/watermill): its
// publishers write to the outbox, its routers read through an inbox.
//
//   - [NewOutbox] is a message.Publisher that appends to the outbox in the transaction of the business change. It
//     replaces Watermill's forwarder over a publisher of watermill-sql: the relay publishes committed messages, in
//     order per key.
//   - [NewPublisher] lets a relay publish through any message.Publisher, for brokers without a publisher in effectonce.
//   - [NewInbox] runs a handler of Watermill's router inside the transaction that records the message's id: its effect
//     happens once, and the message is acknowledged when both are committed.
//
// # Messages as events
//
// A message becomes an event with these fields, and the event becomes the same message again:
//
//	Topic        the topic that it is published to
//	ID           the message's UUID; of another id the UUIDv5; without one a new UUIDv7
//	Key          the result of the config's Key function; by default the metadata "partition_key" ([MetadataKey])
//	Type         the metadata "ce_type"; else "name", which Watermill's package cqrs sets; else OutboxConfig.Type
//	Source       the metadata "ce_source"; else the Appender's
//	Tenant       the metadata "ce_tenant"
//	Time         the metadata "ce_time" (RFC 3339)
//	ContentType  the metadata "content-type"
//	NotBefore    the metadata "_watermill_delayed_until", which Watermill's package delay sets
//	Headers      all other metadata, and the message's UUID as "_watermill_message_uuid" ([MetadataUUID])
//
// watermill-kafka keeps the UUID in the same header, so its subscribers read the relay's records like those of its own
// publisher. Other metadata that begins with "ce_" or "effectonce_" is refused: the relay writes
// these headers. Prefer a UUIDv7 (event.NewID().String()): an inbox drops a day of them at once, other ids row by row.
//
// # Traces
//
// The trace in a message's context goes into the event's headers, and from there into the subscriber's message as the
// metadata "traceparent". No other value of a context is passed on.
package watermill
