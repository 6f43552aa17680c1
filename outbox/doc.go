// Package outbox appends events in the transaction of the business change they tell about: if it commits they will be
// published, if it rolls back they never were.
//
// # The producer's duties
//
//  1. Append in the transaction that makes the change, never after it and never in another one.
//  2. Lock before appending: take the lock of the aggregate's row (an UPDATE of it, SELECT ... FOR UPDATE) or
//     [LockKeys], and append while holding it, in a READ COMMITTED transaction. Events of a key are published in the
//     order in which they were appended under that lock; without one, two transactions may append in one order and
//     commit the other way round.
//  3. Give events that must keep an order the same Key, and let it be the aggregate's identity. Without a Key there is
//     no order.
//  4. Leave ID empty when the transaction is retried as a whole: the attempt before rolled back and took its event
//     along. When the same intent may be appended by two transactions, use event.IntentID; in a consumer's handler,
//     event.Derive.
//  5. When Commit fails, know whether it happened. A server that answers with an error has rolled back. When no answer
//     came, the outcome is unknown, and the outbox proves nothing: a published event is gone from it. Look at the
//     business row. Do not trust a driver's advice that a failed COMMIT is safe to retry.
//  6. Never write the columns lane, id or created_at, never update or delete rows, and never reset the identity's
//     sequence: order per key hangs on ids drawn at insert.
//  7. Keep the transaction short. Nothing waits for it but its own events, and the vacuum.
//  8. An event with NotBefore waits in a table of its own. It has no place in its key's order until it is due: what the
//     key has had by then comes first.
//
// # In one round trip
//
// A round trip is a third of what one event costs a transaction. [Queue] puts events into the pgx.Batch of the
// statements that make the change.
//
// # Plain SQL
//
// Any language can append. Everything but topic and type has a default:
//
//	insert into outbox_event (topic, key, type, payload)
//	values ('payments', 'acc-1', 'PaymentCreated', convert_to('{"amount":100}', 'UTF8'));
//
// From another search_path, name the schema: insert into app.outbox_event. The columns are message_id (a UUID; default
// a UUIDv7 of now), source, tenant, topic, key, type, content_type (default application/json), headers (a JSON object
// of strings), payload (bytea; null is a Kafka tombstone) and event_time (default: when it was appended). The table
// refuses what Kafka would: a bad topic, an empty type, a key over 8 KiB, another text over 2 KiB, a reserved header.
// It does not bound payload and headers; keep the whole event under 1 MiB, or a broker with default settings refuses
// it.
//
// An event of the future goes into outbox_scheduled, which has a column due (timestamptz) and otherwise the same ones.
// Leave message_id out there: the event gets an id of the day it comes.
//
// A producer needs no more than this, for Append too; the identity needs no right on its sequence:
//
//	grant usage on schema app to producer;
//	grant insert (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
//		on app.outbox_event to producer;
//	grant insert (due, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
//		on app.outbox_scheduled to producer; -- for events with NotBefore
//
// It cannot choose an event's id or lane then, nor read, change or delete events.
//
// Insert within an explicit transaction: a driver that repeats a statement whose connection broke, as some do outside
// of one, would append twice. message_id must not be the nil or the max UUID; leave it out unless the id is derived.
package outbox
