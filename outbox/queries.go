package outbox

// The tables this room writes. Their columns are named once more in the queries, which stay plain text.
const (
	table          = "outbox_event"
	scheduledTable = "outbox_scheduled"
)

// columns is what Append fills, in the order of queryAppendOne's parameters. lane, id and created_at are the table's own.
func columns() []string {
	return []string{
		"message_id", "source", "tenant", "topic", "key", "type", "content_type", "headers", "payload", "event_time",
	}
}

// Every value but the payload travels as text and is cast on the server: then the same statement works with every driver
// and in every mode of pgx, whatever parameter types those would choose by themselves.

const queryAppendOne = `-- outbox: append one
insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
values ($1::text::uuid, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb, $9::bytea, $10::text::timestamptz)`

// Arrays as their text literals, and all payloads in one value that is cut apart on the server: base64 or hex inside an
// array would cost twice the bytes. A null size makes a null payload. Ids are drawn above the ordered scan, in its order.
const queryAppendMany = `-- outbox: append many
insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
select e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers,
	substring($9::bytea from e.at for e.size), e.event_time
from unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
	$7::text::text[], $8::text::jsonb[], $10::text::integer[], $11::text::integer[], $12::text::timestamptz[]) with ordinality
	as e (message_id, source, tenant, topic, key, type, content_type, headers, at, size, event_time, n)
order by e.n`

// The lanes whose events come from the WAL of a slot that is there. For a transaction with a snapshot of before, a lane may have been
// closed since: it inserts. Every statement takes the table's lock before it looks, by which a relay that has closed a lane finds
// who may still emit. What is emitted has an id of the table's, drawn as a row's: order by id holds when it has to become one.
// Its encoding is read by the relay, and changes with the first byte: version, whether the payload is null, id, message_id, time,
// six texts and the headers' JSON, each with a zero behind it, and the payload.
const queryEmitMany = `-- outbox: emit many
with given as materialized (
	select e.*, substring($9::bytea from e.at for e.size) as payload,
		(hashtextextended(coalesce(nullif(e.key, ''), e.message_id::text) collate "C", 0) & 31)::smallint as lane
	from unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
		$7::text::text[], $8::text::jsonb[], $10::text::integer[], $11::text::integer[], $12::text::timestamptz[]) with ordinality
		as e (message_id, source, tenant, topic, key, type, content_type, headers, at, size, event_time, n)
), open as materialized (
	select s.lane from {schema}outbox_streamed s
	where s.emitted = 'open' and current_setting('transaction_isolation') = 'read committed'
		and exists (select from {schema}outbox_wal w join pg_get_replication_slots() r on r.slot_name = w.slot
			where r.datoid = (select d.oid from pg_database d where d.datname = current_database()) and r.wal_status is distinct from 'lost')
), inserted as (
	insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
	select e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers, e.payload, e.event_time
	from given e where e.lane not in (select o.lane from open o)
	order by e.n
)
select count(pg_logical_emit_message(true, 'effectonce event ' || '{schema}outbox_event'::regclass::oid,
	case when e.payload is null then '\x0101'::bytea else '\x0100'::bytea end
	|| int8send(nextval('{schema}outbox_event_id_seq')) || uuid_send(e.message_id) || timestamptz_send(coalesce(e.event_time, clock_timestamp()))
	|| convert_to(e.source, 'UTF8') || '\x00'::bytea || convert_to(e.tenant, 'UTF8') || '\x00'::bytea
	|| convert_to(e.topic, 'UTF8') || '\x00'::bytea || convert_to(e.key, 'UTF8') || '\x00'::bytea
	|| convert_to(e.type, 'UTF8') || '\x00'::bytea || convert_to(e.content_type, 'UTF8') || '\x00'::bytea
	|| convert_to(coalesce(e.headers::text, ''), 'UTF8') || '\x00'::bytea || coalesce(e.payload, '')))
from (select g.* from given g join open o on o.lane = g.lane order by g.n offset 0) e`

// The same for one event: without arrays, the plan is made once a session.
const queryEmitOne = `-- outbox: emit one
with open as materialized (
	select s.lane from {schema}outbox_streamed s
	where s.lane = (hashtextextended(coalesce(nullif($5::text, ''), $1::text) collate "C", 0) & 31)::smallint
		and s.emitted = 'open' and current_setting('transaction_isolation') = 'read committed'
		and exists (select from {schema}outbox_wal w join pg_get_replication_slots() r on r.slot_name = w.slot
			where r.datoid = (select d.oid from pg_database d where d.datname = current_database()) and r.wal_status is distinct from 'lost')
), inserted as (
	insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
	select $1::text::uuid, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb, $9::bytea, $10::text::timestamptz
	where not exists (select from open)
)
select pg_logical_emit_message(true, 'effectonce event ' || '{schema}outbox_event'::regclass::oid,
	case when $9::bytea is null then '\x0101'::bytea else '\x0100'::bytea end
	|| int8send(nextval('{schema}outbox_event_id_seq')) || uuid_send($1::text::uuid) || timestamptz_send(coalesce($10::text::timestamptz, clock_timestamp()))
	|| convert_to($2::text, 'UTF8') || '\x00'::bytea || convert_to($3::text, 'UTF8') || '\x00'::bytea
	|| convert_to($4::text, 'UTF8') || '\x00'::bytea || convert_to($5::text, 'UTF8') || '\x00'::bytea
	|| convert_to($6::text, 'UTF8') || '\x00'::bytea || convert_to($7::text, 'UTF8') || '\x00'::bytea
	|| convert_to(coalesce($8::text::jsonb::text, ''), 'UTF8') || '\x00'::bytea || coalesce($9::bytea, ''))
from open`

const queryScheduleOne = `-- outbox: schedule one
insert into {schema}outbox_scheduled (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time, due)
values ($1::text::uuid, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb, $9::bytea, $10::text::timestamptz, $11::text::timestamptz)`

const queryScheduleMany = `-- outbox: schedule many
insert into {schema}outbox_scheduled (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time, due)
select e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers,
	substring($9::bytea from e.at for e.size), e.event_time, e.due
from unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
	$7::text::text[], $8::text::jsonb[], $10::text::integer[], $11::text::integer[], $12::text::timestamptz[], $13::text::timestamptz[]) with ordinality
	as e (message_id, source, tenant, topic, key, type, content_type, headers, at, size, event_time, due, n)
order by e.n`

// Ordered by hash, which is what is locked: two keys of one hash are one lock, so an order by key could still deadlock.
const queryLockKeys = `-- outbox: lock keys
select pg_advisory_xact_lock(k.hash) from (
	select distinct hashtextextended(key collate "C", 0) as hash from unnest($1::text::text[]) as key order by hash) as k`
