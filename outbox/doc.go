// Package outbox appends events in the transaction of the business change that they describe: they are published if it
// commits, and do not exist if it rolls back.
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
//  4. Leave ID empty if the transaction is retried as a whole: the earlier attempt rolled back, and its event with it.
//     If two transactions may append the same intent, use event.IntentID; in a consumer's handler, event.Derive.
//  5. If Commit fails, find out whether it happened. A server that answers with an error has rolled back. Without an
//     answer the outcome is unknown, and the outbox proves nothing: a published event is no longer in it. Look at the
//     business row. Do not trust a driver's advice that a failed COMMIT is safe to retry.
//  6. Never write the columns lane, id or created_at, never update or delete rows, and never reset the identity's
//     sequence: the order per key depends on ids that are assigned at insert.
//  7. Keep the transaction short. Only its own events wait for it, and vacuum.
//  8. An event with NotBefore waits in another table. It gets its place in its key's order when it is due: events that
//     the key has by then come first.
//
// # In one round trip
//
// A round trip is a third of the cost of one event in a transaction. [Queue] puts events into the pgx.Batch of the
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
// A scheduled event goes into outbox_scheduled, which has the same columns and due (timestamptz). Leave message_id out
// there: the event gets an id of the day on which it is due.
//
// A producer needs only these rights, also for Append; the identity needs no right on its sequence:
//
//	grant usage on schema app to producer;
//	grant insert (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
//		on app.outbox_event to producer;
//	grant insert (due, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
//		on app.outbox_scheduled to producer; -- for events with NotBefore
//
// With them it cannot choose an event's id or lane, and cannot read, change or delete events.
//
// Insert in an explicit transaction: outside of one, some drivers repeat a statement after a broken connection, and
// would append twice. message_id must not be the nil or the max UUID; leave it out unless the id is derived.
package outbox
