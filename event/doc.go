// Package event defines the Event, and its encoding as a Kafka record.
//
// An [Event] is appended by package outbox, published by package relay and handled by package inbox. On the wire it is
// a Kafka record in the binary mode of the CloudEvents Kafka protocol binding 1.0: the payload is the record's value,
// the key is the record's key, and everything else is a header (see [AppendHeaders] and [Decode]). Other producers may
// write the structured mode, or no CloudEvents at all.
//
// Inboxes apply an id once. Four ways to choose an event's id, cheapest first:
//
//   - none: outbox.Append assigns a UUIDv7 ([NewID]); a retry of the whole transaction makes a new event, which is
//     right because the first attempt rolled back;
//   - [IntentID]: a UUIDv5 of the intent, for a producer that may append the same intent in two transactions;
//   - [Derive]: for an event that a handler emits, so that running the handler again emits the same id;
//   - [ForeignID] and [RecordID]: ids that a consumer gives to the records of other producers.
package event
