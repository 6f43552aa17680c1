package relay

// The claim of lanes that have much to send, in two pipelines: see bulk.go.
const (
	// The next rows of each lane by id, as take finds them. Which of them are claimed is decided by whoever reads them, so
	// that nothing is kept here: a running sum and a copy for the journal took more than half of a claim. A large row comes
	// without what makes it large.
	sqlRead = `-- relay: read
with ids as materialized (
	select n.last_value from {schema}outbox_event_id_seq n, pg_sequence q, pg_control_system() c
	where q.seqrelid = '{schema}outbox_event_id_seq'::regclass and q.seqcache = 1 and not q.seqcycle and q.seqincrement = 1
		and $7::text = c.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || q.seqrelid::oid || '/' || pg_relation_filenode(q.seqrelid)
), mine as materialized (
	select l.lane, case when f.floor <= (select last_value from ids) then f.floor else 0 end as floor, f.most
	from unnest($1::smallint[], $2::bigint[], $4::bigint[], $6::bigint[], $5::integer[]) f (lane, fence, next, floor, most)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	where not exists (select from (
		select from {schema}outbox_claim c where c.lane = l.lane and c.first_seq >= f.next order by c.first_seq limit 1) one)
)
select p.lane, p.id, p.large, p.message_id, p.source, p.tenant, p.topic, p.key, p.type, p.content_type,
	case when not p.large then p.headers end, case when not p.large then p.payload end, p.at
from mine m cross join lateral (
	select e.lane, e.id, e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers, e.payload,
		coalesce(e.event_time, e.created_at) as at,
		coalesce(octet_length(e.payload) > $8, false) or coalesce(pg_column_size(e.headers) > 1000, false) as large
	from {schema}outbox_event e
	where e.lane = m.lane and e.id > m.floor
	order by e.id
	limit m.most
) p`

	// One entry for each lane that read has found something for: lane $1 from number $4 on, with the ids from the $6th to the
	// $7th of $5.
	sqlJournal = `-- relay: journal
insert into {schema}outbox_claim (lane, first_seq, ids, seqs)
select l.lane, f.first_seq, ($5::bigint[])[f.low:f.high], array(select generate_series(f.first_seq, f.first_seq + f.high - f.low))
from unnest($1::smallint[], $2::bigint[], $4::bigint[], $6::integer[], $7::integer[]) f (lane, fence, first_seq, low, high)
join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3`
)
