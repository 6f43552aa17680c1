package outbox

// The tables this room writes. Their columns are named once more in the queries, which stay plain text.
const (
	table          = "outbox_event"
	scheduledTable = "outbox_scheduled"
)

// columns is what Append fills, in the order of queryAppendOne's parameters. lane, id and created_at are the table's
// own.
func columns() []string {
	return []string{
		"message_id", "source", "tenant", "topic", "key", "type", "content_type", "headers", "payload", "event_time",
	}
}

// Every value but the payload travels as text and is cast on the server: then the same statement works with every
// driver and in every mode of pgx, whatever parameter types those would choose by themselves. In another encoding than
// Go's the server would take them for other texts: it refuses the first one, with an error that says so.

const queryAppendOne = `-- outbox: append one
insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload,
	event_time)
values (case when pg_client_encoding() in ('UTF8', 'SQL_ASCII') then $1::text
	else 'the client_encoding ' || pg_client_encoding() || ': set it to UTF8 for the role and the database' end::uuid,
	$2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb, $9::bytea,
	$10::text::timestamptz)`

// Arrays as their text literals, and all payloads in one value that is cut apart on the server: base64 or hex inside an
// array would cost twice the bytes. A null size makes a null payload. Ids are drawn above the ordered scan, in its
// order.
const queryAppendMany = `-- outbox: append many
insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload,
	event_time)
select e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers,
	substring($9::bytea from e.at for e.size), e.event_time
from unnest(case when pg_client_encoding() in ('UTF8', 'SQL_ASCII') then $1::text
	else 'the client_encoding ' || pg_client_encoding() || ': set it to UTF8 for the role and the database' end::uuid[],
	$2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
	$7::text::text[], $8::text::jsonb[], $10::text::integer[], $11::text::integer[],
	$12::text::timestamptz[]) with ordinality
	as e (message_id, source, tenant, topic, key, type, content_type, headers, at, size, event_time, n)
order by e.n`

const queryScheduleOne = `-- outbox: schedule one
insert into {schema}outbox_scheduled (message_id, source, tenant, topic, key, type, content_type, headers, payload,
	event_time, due)
values (case when pg_client_encoding() in ('UTF8', 'SQL_ASCII') then $1::text
	else 'the client_encoding ' || pg_client_encoding() || ': set it to UTF8 for the role and the database' end::uuid,
	$2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb, $9::bytea,
	$10::text::timestamptz, $11::text::timestamptz)`

const queryScheduleMany = `-- outbox: schedule many
insert into {schema}outbox_scheduled (message_id, source, tenant, topic, key, type, content_type, headers, payload,
	event_time, due)
select e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers,
	substring($9::bytea from e.at for e.size), e.event_time, e.due
from unnest(case when pg_client_encoding() in ('UTF8', 'SQL_ASCII') then $1::text
	else 'the client_encoding ' || pg_client_encoding() || ': set it to UTF8 for the role and the database' end::uuid[],
	$2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
	$7::text::text[], $8::text::jsonb[], $10::text::integer[], $11::text::integer[], $12::text::timestamptz[],
	$13::text::timestamptz[]) with ordinality
	as e (message_id, source, tenant, topic, key, type, content_type, headers, at, size, event_time, due, n)
order by e.n`

// Ordered by hash, which is what is locked: two keys of one hash are one lock, so an order by key could still deadlock.
// It fails, with a division by zero, in a transaction that goes on seeing what there was before the lock.
const queryLockKeys = `-- outbox: lock keys
select pg_advisory_xact_lock(k.hash) from (
	select distinct hashtextextended(key collate "C", 0) as hash from unnest($1::text::text[]) as key
	order by hash) as k
where 1 / (current_setting('transaction_isolation') <> 'repeatable read')::integer = 1`
