package outbox

// The tables that this package writes. The queries, which are plain text, repeat their columns.
const (
	table          = "outbox_event"
	scheduledTable = "outbox_scheduled"
)

// columns returns the columns that Append fills, in the order of queryAppendOne's parameters. The table fills lane, id
// and created_at itself.
func columns() []string {
	return []string{
		"message_id", "source", "tenant", "topic", "key", "type", "content_type", "headers", "payload", "event_time",
	}
}

// Every value except the payload is sent as text and cast on the server, so that the same statement works with every
// driver and in every mode of pgx, whatever parameter types they would choose. In an encoding other than UTF-8 the
// server would read other texts: the first one fails, with an error that says so.

const queryAppendOne = `-- outbox: append one
insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload,
	event_time)
values (case when pg_client_encoding() in ('UTF8', 'SQL_ASCII') then $1::text
	else 'the client_encoding ' || pg_client_encoding() || ': set it to UTF8 for the role and the database' end::uuid,
	$2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb, $9::bytea,
	$10::text::timestamptz)`

// Arrays are text literals, and all payloads are one value that the server cuts apart: base64 or hex inside an array
// would cost twice the bytes. A null size makes a null payload. Ids are assigned above the ordered scan, in its order.
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

// Ordered by hash, which is the lock: an order by key could deadlock, because two keys may have one hash. It fails with
// a division by zero in a transaction whose snapshot is older than the lock.
const queryLockKeys = `-- outbox: lock keys
select pg_advisory_xact_lock(k.hash) from (
	select distinct hashtextextended(key collate "C", 0) as hash from unnest($1::text::text[]) as key
	order by hash) as k
where 1 / (current_setting('transaction_isolation') <> 'repeatable read')::integer = 1`
