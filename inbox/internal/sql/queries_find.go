package sql

// Statements that find events. All return these columns: consumer, where, since when, code, id of the parked event,
// message id, tenant, topic, key, type, partition, offset, error.

const FindMessage = `-- inbox: find by message id
select c.consumer_name, case m.status when 'done' then 'decided' else m.status end, m.processed_at,
	coalesce(m.error_code, ''), 0::bigint, $1::uuid::text, ''::bytea, '', ''::bytea, '', -1, -1::bigint, ''
from {schema}inbox_consumer c cross join lateral (
	(select status, processed_at, error_code from {schema}inbox_message d
		where d.consumer_name = c.consumer_name and d.message_id = $1::uuid limit 1)
	union all
	(select status, processed_at, error_code from {schema}inbox_message_any a
		where a.consumer_name = c.consumer_name and a.message_id = $1::uuid limit 1)) m
union all
select c.consumer_name, p.kind, p.parked_at, p.code, p.id, p.message_id::text, p.tenant, p.topic,
	coalesce(p.record_key, ''), p.type, p.record_partition, p.record_offset, p.reason
from {schema}inbox_consumer c cross join lateral (select * from {schema}inbox_parked q
	where q.consumer_name = c.consumer_name and q.message_id = $1::uuid limit 1) p`

// FindContents returns ids from $1 to $2 and their contents, at most $3 of each table and consumer.
const FindContents = `-- inbox: find contents
select distinct m.message_id::text, m.content from {schema}inbox_consumer c cross join lateral (
	(select message_id, content from {schema}inbox_message d where d.consumer_name = c.consumer_name
		and d.message_id between $1::uuid and $2::uuid order by d.message_id limit $3::bigint)
	union all
	(select message_id, content from {schema}inbox_message_any a where a.consumer_name = c.consumer_name
		and a.message_id between $1::uuid and $2::uuid order by a.message_id limit $3::bigint)
	union all
	(select message_id, content from {schema}inbox_parked p where p.consumer_name = c.consumer_name
		and p.message_id between $1::uuid and $2::uuid order by p.message_id limit $3::bigint)) m`

const FindParked = `-- inbox: find what is parked
select p.consumer_name, p.kind, p.parked_at, p.code, p.id, p.message_id::text, p.tenant, p.topic,
	coalesce(p.record_key, ''), p.type, p.record_partition, p.record_offset, p.reason
from {schema}inbox_parked p where p.id = $1::bigint`

// There is no index on keys alone, so only the first rows are scanned.
const FindKey = `-- inbox: find by key
select p.consumer_name, p.kind, p.parked_at, p.code, p.id, p.message_id::text, p.tenant, p.topic,
	coalesce(p.record_key, ''), p.type, p.record_partition, p.record_offset, p.reason
from (select * from {schema}inbox_parked order by id limit $2::bigint) p where p.record_key = $1::bytea
order by p.id limit $3::bigint`

const FindMore = `-- inbox: find more
select exists (select from {schema}inbox_parked order by id offset $1::bigint limit 1)`

const FindUnrecorded = `-- inbox: find who keeps no ids
select consumer_name from {schema}inbox_consumer where dedup <> 'id' order by consumer_name`
