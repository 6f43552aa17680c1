package sql

// Finds an event by its id, its message id or its key. There is no index just for that: the tables of waiting events
// are read in the order of their primary keys, up to a number of rows per lane; all rows of a key are in its lane.
const (
	// $1 is an id. The journal has a few entries per lane.
	FindID = `-- relay: find by id
select case when c.seq is null then 'waiting' else 'claimed' end, e.lane, e.id, e.message_id, e.tenant, e.topic, e.key,
	e.type, coalesce(octet_length(e.payload), -1), e.created_at, null::timestamptz, coalesce(c.seq, 0), '', '', ''
from generate_series(0, 31) n cross join lateral (
	select * from {schema}outbox_event o where o.lane = n and o.id = $1 limit 1) e
left join lateral (select j.seqs[array_position(j.ids, e.id)] as seq from {schema}outbox_claim j
	where j.lane = e.lane and e.id = any(j.ids) limit 1) c on true
union all
select 'held', e.lane, e.id, e.message_id, e.tenant, e.topic, e.key, e.type, coalesce(octet_length(e.payload), -1),
	e.created_at, e.held_at, e.seq, '', '', ''
from generate_series(0, 31) n cross join lateral (
	select * from {schema}outbox_held o where o.lane = n and o.id = $1 limit 1) e
union all
select 'parked', e.lane, e.id, e.message_id, e.tenant, e.topic, e.key, e.type, coalesce(octet_length(e.payload), -1),
	e.created_at, e.parked_at, 0, '', e.code, e.reason
from {schema}outbox_parked e where e.id + 0 = $1`

	// By message id ($1) or by key ($2), the other one null. $3 is the number of rows of a lane that are read, $4 the
	// number of rows of each table that are returned.
	FindWaiting = `-- relay: find what waits
with l as materialized (select n::smallint as lane from generate_series(0, 31) n
	where $2::text is null or n = hashtextextended($2::text collate "C", 0) & 31)
(select case when c.seq is null then 'waiting' else 'claimed' end, e.lane, e.id, e.message_id, e.tenant, e.topic, e.key,
	e.type, coalesce(octet_length(e.payload), -1), e.created_at, null::timestamptz, coalesce(c.seq, 0), '', '', ''
from l cross join lateral (
	select * from {schema}outbox_event o where o.lane = l.lane order by o.id limit $3::bigint) e
left join lateral (select j.seqs[array_position(j.ids, e.id)] as seq from {schema}outbox_claim j
	where j.lane = e.lane and e.id = any(j.ids) limit 1) c on true
where e.message_id = $1::uuid or e.key = $2::text order by e.id limit $4::bigint)
union all
(select 'held', e.lane, e.id, e.message_id, e.tenant, e.topic, e.key, e.type, coalesce(octet_length(e.payload), -1),
	e.created_at, e.held_at, e.seq, '', '', ''
from l cross join lateral (
	select * from {schema}outbox_held o where o.lane = l.lane order by o.id limit $3::bigint) e
where e.message_id = $1::uuid or e.key = $2::text order by e.id limit $4::bigint)
union all
(select 'scheduled', e.lane, e.seq, coalesce(e.message_id, '00000000-0000-0000-0000-000000000000'), e.tenant, e.topic,
	e.key, e.type, coalesce(octet_length(e.payload), -1), e.created_at, e.due, 0, '', '', ''
from l cross join lateral (
	select * from {schema}outbox_scheduled o where o.lane = l.lane order by o.due, o.seq limit $3::bigint) e
where e.message_id = $1::uuid or e.key = $2::text order by e.due, e.seq limit $4::bigint)
union all
(select 'parked', e.lane, e.id, e.message_id, e.tenant, e.topic, e.key, e.type, coalesce(octet_length(e.payload), -1),
	e.created_at, e.parked_at, 0, '', e.code, e.reason
from l cross join lateral (
	select * from {schema}outbox_parked o where o.lane = l.lane order by o.id limit $3::bigint) e
where e.key = $2::text order by e.id limit $4::bigint)`

	// The tables of which FindWaiting has read only a part.
	FindMore = `-- relay: find more
with l as materialized (select n::smallint as lane from generate_series(0, 31) n
	where $1::text is null or n = hashtextextended($1::text collate "C", 0) & 31)
select 'waiting' where exists (select from l cross join lateral (
	select from {schema}outbox_event o where o.lane = l.lane order by o.id offset $2::bigint limit 1) e)
union all
select 'held' where exists (select from l cross join lateral (
	select from {schema}outbox_held o where o.lane = l.lane order by o.id offset $2::bigint limit 1) e)
union all
select 'scheduled' where exists (select from l cross join lateral (
	select from {schema}outbox_scheduled o where o.lane = l.lane order by o.due, o.seq offset $2::bigint limit 1) e)
union all
select 'parked' where $1::text is not null and exists (select from l cross join lateral (
	select from {schema}outbox_parked o where o.lane = l.lane order by o.id offset $2::bigint limit 1) e)`

	FindMessage = `-- relay: find by message id
(select 'parked', e.lane, e.id, e.message_id, e.tenant, e.topic, e.key, e.type, coalesce(octet_length(e.payload), -1),
	e.created_at, e.parked_at, 0, '', e.code, e.reason
from {schema}outbox_parked e where e.message_id = $1::uuid limit $2::bigint)
union all
(select 'archived', e.lane, e.id, e.message_id, e.tenant, e.topic, e.key, e.type, coalesce(octet_length(e.payload), -1),
	e.created_at, e.published_at, e.seq, e.epoch, '', ''
from {schema}outbox_archive e where e.message_id = $1::uuid order by e.published_at limit $2::bigint)`
)
