package sql

// The claim of lanes with a backlog, in two pipelines: see bulk.go.
const (
	// For read, and for the statements after it in its transaction.
	ReadSettings = `-- relay: read settings
select set_config('enable_bitmapscan', 'on', true), set_config('enable_indexscan', 'off', true)`

	// The rows of lanes up to an id, in the order in which the table stores them: a page has rows of many lanes, and is
	// read once for all. It costs half of reading lane by lane. The relay sorts the rows and decides which are claimed.
	// Large rows are returned without their large columns. If the limit is reached there are too many rows: others may
	// be missing before them. The limit is in the subquery: otherwise the test for large rows would run for each
	// column, which doubled the cost of a row.
	Read = `-- relay: read
with ids as materialized (
	select n.last_value, case when exists (select from unnest(nullif(split_part($7::text, ' ', 2), '')::xid8[]) x (xid)
		where pg_visible_in_snapshot(x.xid, pg_current_snapshot())) then 9223372036854775807 else 0 end as blind
	from {schema}outbox_event_id_seq n, pg_sequence q, {schema}outbox_server() c
	where q.seqrelid = '{schema}outbox_event_id_seq'::regclass and q.seqcache = 1 and not q.seqcycle
		and q.seqincrement = 1
		and split_part($7::text, ' ', 1) = c.system || '/' || c.timeline || '/' || q.seqrelid::oid || '/' ||
		pg_relation_filenode(q.seqrelid)
), mine as materialized (
	select l.lane, case when f.floor <= (select last_value from ids) then greatest(f.floor, (select blind from ids))
		else 0 end as floor
	from unnest($1::smallint[], $2::bigint[], $4::bigint[], $6::bigint[]) f (lane, fence, next, floor)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	where not exists (select from (
		select from {schema}outbox_claim c where c.lane = l.lane and c.first_seq >= f.next order by c.first_seq
		limit 1) one)
)
select r.lane, r.id, r.place, r.large, r.message_id, case when r.large then '' else r.source end, case
	when r.large then '' else r.tenant end,
	r.topic, case when r.large then '' else r.key end, case when r.large then '' else r.type end, case
	when r.large then '' else r.content_type end,
	case when not r.large then r.headers end, case when not r.large then r.payload end, coalesce(r.event_time,
		r.created_at)
from (
	select e.*, e.ctid as place, coalesce(octet_length(e.payload), 0) + octet_length(e.key) + octet_length(e.tenant) +
		octet_length(e.source)
		+ octet_length(e.type) + octet_length(e.content_type) > $8::integer
		or coalesce(pg_column_size(e.headers) > 1000, false) or pg_column_compression(e.headers) is not null as large
	from only {schema}outbox_event e
	where e.lane = any (array(select mine.lane from mine)) and e.id > (select min(mine.floor) from mine) and e.id <= $5
	limit $9
) r`

	// One entry for each lane with rows from read: lane $1 from number $4 on, with the ids from the $6th to the $7th of
	// $5.
	Journal = `-- relay: journal
insert into {schema}outbox_claim (lane, first_seq, ids, seqs)
select l.lane, f.first_seq, ($5::bigint[])[f.low:f.high], array(select generate_series(f.first_seq,
	f.first_seq + f.high - f.low))
from unnest($1::smallint[], $2::bigint[], $4::bigint[], $6::integer[], $7::integer[]) f (lane, fence, first_seq, low,
	high)
join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3`

	// As settle, by the positions of the rows in the table ($5, in the order of the table, with their ids in $6): that
	// saves a descent of the index for each. It fails, with a division by zero, if other rows are there, because the
	// table was rewritten or events were deleted, and if a lane is lost. A scan by ctids runs in their order.
	SettlePlaced = `-- relay: settle placed
with own as materialized (
	select f.lane, c.entry
	from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
	cross join lateral (
		select from {schema}outbox_lane l where l.lane = f.lane and l.fence = f.fence and l.owner = $3 limit 1) l
	cross join lateral (
		select c.ctid as entry from {schema}outbox_claim c where c.lane = f.lane and c.first_seq = f.first_seq
		limit 1) c
), entries as (
	delete from {schema}outbox_claim c where c.ctid = any (array(select own.entry from own))
), gone as (
	delete from only {schema}outbox_event e
	where e.ctid = any ($5::tid[]) and (select count(*) from own) = cardinality($1::smallint[])
	returning e.id
)
select lane from own where 1 / ((select array_agg(gone.id) from gone) is not distinct from $6::bigint[])::integer = 1`
)
