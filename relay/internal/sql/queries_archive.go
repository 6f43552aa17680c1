package sql

// The archive's statements. Those about one day also have {day} (eight digits), {from} and {to} (bounds): DDL takes no
// parameters, and all three are made from a number.
const (
	ArchiveDays = `-- relay: archive days
select p.relnamespace::regnamespace::text || '.', floor(extract(epoch from clock_timestamp()) / 86400)::integer,
	array(select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = p.oid and c.relname ~ '^outbox_archive_[0-9]{8}$' order by 1)
from pg_class p where p.oid = '{schema}outbox_archive'::regclass`

	Archive = `-- relay: archive
select coalesce(to_char(to_date(substring(c.relname from '^outbox_archive_([0-9]{8})$'), 'yyyymmdd'), 'yyyy-mm-dd'),
	''), c.reltuples::bigint, pg_total_relation_size(c.oid)
from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = '{schema}outbox_archive'::regclass
order by 1 desc`

	// Settles queue behind a session that waits for the table's lock, hence the short time-outs. Only one session
	// maintains at a time.
	ArchiveLock = `-- relay: archive lock
select set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
	pg_try_advisory_xact_lock(1701209712, '{schema}outbox_archive'::regclass::oid::integer)`

	MakeArchiveDay = `-- relay: make archive day
create table {schema}outbox_archive_{day} (like {schema}outbox_archive including defaults including storage)`

	AttachArchiveDay = `-- relay: attach archive day
alter table {schema}outbox_archive attach partition {schema}outbox_archive_{day} for values from ('{from}') to ('{to}')`

	DropArchiveDay = `-- relay: drop archive day
drop table if exists {schema}outbox_archive_{day}`

	CleanArchive = `-- relay: clean archive
delete from {schema}outbox_archive_default d
where d.ctid = any (array(select o.ctid from {schema}outbox_archive_default o where o.published_at < $1 limit $2))`

	// As settle, into the archive, each row with the number that it has.
	SettleArchived = `-- relay: settle archived
with own as materialized (
	select f.lane, c.entry, c.ids, c.seqs
	from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
	cross join lateral (
		select from {schema}outbox_lane l where l.lane = f.lane and l.fence = f.fence and l.owner = $3 limit 1) l
	cross join lateral (
		select c.ctid as entry, c.ids, c.seqs from {schema}outbox_claim c where c.lane = f.lane
			and c.first_seq = f.first_seq limit 1) c
), entries as (
	delete from {schema}outbox_claim c where c.ctid = any (array(select own.entry from own))
), found as materialized (
	select r.ctid as row, u.seq from own cross join lateral unnest(own.ids, own.seqs) u (id, seq) cross join lateral (
		select e.ctid from only {schema}outbox_event e where e.lane = own.lane and e.id = u.id limit 1) r
), gone as (
	delete from only {schema}outbox_event e using found k where e.ctid = k.row
	returning e.*, k.seq
), kept as (
	insert into {schema}outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
		content_type, headers, payload, event_time, created_at)
	select $5, lane, seq, id, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time,
		created_at
	from gone order by lane, seq
)
select lane, case when (select count(*) from gone) < (select count(*) from found)
	then current_setting('published events cannot be deleted: a trigger of outbox_event keeps them')::bigint
	else (select count(*) from gone) end from own`

	// As settle acked, into the archive.
	SettleAckedArchived = `-- relay: settle acked archived
with own as materialized (
	select c.lane from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	cross join lateral (
		select c.lane from {schema}outbox_claim c where c.lane = l.lane and c.first_seq = f.first_seq limit 1) c
), v as materialized (
	select v.* from unnest($5::smallint[], $6::bigint[], $7::bigint[]) v (lane, id, seq) where v.lane in (select lane
		from own)
), found as materialized (
	select v.*, e.ctid as event, h.ctid as held, p.ctid as parked from v
	left join lateral (select e.ctid from only {schema}outbox_event e where e.lane = v.lane and e.id = v.id
		limit 1) e on true
	left join lateral (select h.ctid from {schema}outbox_held h where h.lane = v.lane and h.id = v.id limit 1) h on true
	left join lateral (select p.ctid from {schema}outbox_parked p where p.lane = v.lane and p.id = v.id
		limit 1) p on true
), taken as (
	delete from only {schema}outbox_event e using found v where e.ctid = v.event
	returning e.lane, v.seq, e.id, e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers,
		e.payload, e.event_time, e.created_at
), drained as (
	delete from {schema}outbox_held h using found v where h.ctid = v.held
	returning h.lane, v.seq, h.id, h.message_id, h.source, h.tenant, h.topic, h.key, h.type, h.content_type, h.headers,
		h.payload, h.event_time, h.created_at
), released as (
	delete from {schema}outbox_parked p using found v where p.ctid = v.parked
	returning p.lane, v.seq, p.id, p.message_id, p.source, p.tenant, p.topic, p.key, p.type, p.content_type, p.headers,
		p.payload, p.event_time, p.created_at
), gone as (
	select * from taken union all select * from drained union all select * from released
), kept as (
	insert into {schema}outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
		content_type, headers, payload, event_time, created_at)
	select $8, g.* from gone g order by g.lane, g.seq
)
select case when (select count(*) from gone) < (select count(event) + count(held) + count(parked) from found)
	then current_setting('published events cannot be deleted: a trigger of outbox_event, outbox_held or outbox_parked '
		'keeps them') end`
)
