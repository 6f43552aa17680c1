package sql

// The statements of the WAL feed (docs/decisions/0023). LSNs travel as numbers.
const (
	// The columns that Postgres 17 added are read by name, because older versions lack them.
	WALState = `-- relay: wal state
select current_setting('wal_level'), current_setting('synchronous_standby_names') <> '',
	'effectonce_' || replace(m.outbox_id::text, '-', ''),
	m.system_identifier = c.system and m.timeline = c.timeline,
	coalesce((c.lsn - '0/0')::bigint, 0),
	exists (select from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
		where p.pubname = 'effectonce_' || replace(m.outbox_id::text, '-', '')
			and r.prrelid = '{schema}outbox_event'::regclass
			and p.pubinsert and not p.pubupdate and not p.pubdelete and not p.pubtruncate and r.prqual is null
			and r.prattrs is null),
	coalesce(w.slot, ''), coalesce((w.base - '0/0')::bigint, 0), coalesce((w.confirmed - '0/0')::bigint, 0),
	coalesce(w.system_identifier = c.system and w.timeline = c.timeline,
		false),
	coalesce(w.owner = $1, false), exists (select from {schema}relay_member b where b.owner = w.owner
		and b.lease_until > clock_timestamp()),
	s.slot_name is not null, coalesce(s.database = current_database() and s.plugin = 'pgoutput', false),
	coalesce(s.active_pid, 0),
	coalesce((s.confirmed_flush_lsn - '0/0')::bigint, 0), coalesce(s.wal_status, ''),
	coalesce((to_jsonb(s) ->> 'failover')::boolean, true),
	coalesce((to_jsonb(s) ->> 'synced')::boolean, false) and not s.temporary
		and w.system_identifier = c.system and c.system <> 0 and w.timeline collate "C" < c.timeline
from {schema}outbox_meta m cross join {schema}outbox_server() c
left join {schema}outbox_wal w on w.one
left join pg_replication_slots s on s.slot_name = 'effectonce_' || replace(m.outbox_id::text, '-', '')`

	WALPublished = `-- relay: wal published
select exists (select from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
	where p.pubname = 'effectonce_' || replace(m.outbox_id::text, '-', '')
		and r.prrelid = '{schema}outbox_event'::regclass
		and p.pubinsert and not p.pubupdate and not p.pubdelete and not p.pubtruncate and r.prqual is null
		and r.prattrs is null)
from {schema}outbox_meta m`

	// The first event of each lane that has any.
	WALLeft = `-- relay: wal left
select u.lane, e.id from unnest($1::smallint[]) u (lane) cross join lateral (
	select e.id from {schema}outbox_event e where e.lane = u.lane order by e.id limit 1) e`

	// All WAL that is written from here on is after it.
	WALUpTo = `-- relay: wal up to
select (pg_current_wal_insert_lsn() - '0/0')::bigint`

	// One relay at a time makes the slot. The lock ends with the transaction, for poolers.
	WALAlone = `-- relay: wal alone
select pg_try_advisory_xact_lock(1701209713, '{schema}outbox_wal'::regclass::oid::integer)`

	// Before anything is written: a transaction that has written cannot make a slot.
	WALCreate = `-- relay: wal create
select (lsn - '0/0')::bigint from pg_create_logical_replication_slot($1, 'pgoutput')`

	// Numbers continue from the base, unless they run out.
	WALAdopt = `-- relay: wal adopt
insert into {schema}outbox_wal (slot, system_identifier, timeline, base, confirmed)
select s.slot_name, c.system, c.timeline, s.confirmed_flush_lsn,
	s.confirmed_flush_lsn
from pg_replication_slots s, {schema}outbox_server() c where s.slot_name = $1
on conflict (one) do update set slot = excluded.slot, confirmed = excluded.confirmed, confirmed_at = clock_timestamp(),
	owner = null,
	base = case when $2 or (outbox_wal.system_identifier, outbox_wal.timeline) is distinct
	from (excluded.system_identifier, excluded.timeline)
		then excluded.base else outbox_wal.base end,
	system_identifier = excluded.system_identifier, timeline = excluded.timeline`

	// The slot was synchronized from the old server at the recorded position.
	WALFollow = `-- relay: wal follow
update {schema}outbox_wal w set timeline = c.timeline from {schema}outbox_server() c
where w.slot = $1 and w.confirmed = '0/0'::pg_lsn + $2::bigint and w.system_identifier = c.system`

	WALOwn = `-- relay: wal own
update {schema}outbox_wal set owner = $1 where slot = $2`

	// Fails, with a division by zero, if a server has taken over since the slot's state was written. Its rows may be
	// others under the same ids, and its WAL another at the same positions.
	WALHere = `-- relay: wal here
select 1 / (w.system_identifier = c.system and w.timeline = c.timeline)::integer
from {schema}outbox_wal w, {schema}outbox_server() c where w.slot = $1`

	// Written before the slot is confirmed: so a slot that is ahead of it was moved, or made, by somebody else.
	WALConfirm = `-- relay: wal confirm
update {schema}outbox_wal w set confirmed = greatest(w.confirmed, '0/0'::pg_lsn + $2::bigint),
	confirmed_at = clock_timestamp()
from {schema}outbox_server() c
where w.slot = $1 and w.system_identifier = c.system and w.timeline = c.timeline
returning current_setting('synchronous_standby_names') <> ''`

	WALEnd = `-- relay: wal end
select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active_pid = $2`

	// A message in the WAL, which lets a slot advance that has nothing else to send.
	WALBeat = `-- relay: wal beat
select pg_logical_emit_message(false, 'effectonce', '')`

	// A commit that waits for the synchronous standby, and thus for all that was committed before it.
	WALBarrier = `-- relay: wal barrier
select pg_logical_emit_message(true, 'effectonce barrier', '')`

	Streamed = `-- relay: streamed
select s.lane, s.snapshot::text, (s.until - '0/0')::bigint, s.done from {schema}outbox_streamed s`

	Snapshot = `-- relay: snapshot
select pg_current_snapshot()::text`

	// One snapshot of the lanes that can be handed over: events that it shows are, or will be, published from the
	// table, and the others come from the WAL. A transaction that it shows has written its commit before the until.
	// Lanes with more than a few events left are not included.
	HandOver = `-- relay: hand over
with ids as materialized (
	select n.last_value from {schema}outbox_event_id_seq n, pg_sequence q, {schema}outbox_server() c
	where q.seqrelid = '{schema}outbox_event_id_seq'::regclass and q.seqcache = 1 and not q.seqcycle
		and q.seqincrement = 1
		and $5::text = c.system || '/' || c.timeline || '/' || q.seqrelid::oid || '/' ||
		pg_relation_filenode(q.seqrelid)
), mine as materialized (
	select l.lane, case when f.floor <= (select last_value from ids) then f.floor else 0 end as floor
	from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, floor)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
)
select m.lane, pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0')::bigint, array(
	select e.id from {schema}outbox_event e where e.lane = m.lane and e.id > m.floor order by e.id limit $6 + 1)
from mine m
where not exists (select from (select from {schema}outbox_claim c where c.lane = m.lane
		order by c.first_seq limit 1) one)
	and not exists (select from (select from {schema}outbox_held h where h.lane = m.lane order by h.id limit 1) one)
	and not exists (select from (select from {schema}outbox_parked_key k where k.lane = m.lane limit 1) one)
	and not exists (select from (select from {schema}outbox_parked p where p.lane = m.lane and p.releasing
		order by p.id limit 1) one)`

	// Locked: a relay that begins to read writes its name there first, and then reads the lanes.
	WALReads = `-- relay: wal reads
select w.one from {schema}outbox_wal w, {schema}outbox_server() c
where w.slot = $1 and w.owner = $2 and w.system_identifier = c.system and w.timeline = c.timeline for share of w`

	// No relay reads the WAL any more.
	WALDisown = `-- relay: wal disown
update {schema}outbox_wal set owner = null`

	Stream = `-- relay: stream
insert into {schema}outbox_streamed (lane, snapshot, until, done)
select l.lane, f.snapshot::pg_snapshot, '0/0'::pg_lsn + f.until, array(select d.id
	from unnest($6::smallint[], $7::bigint[]) d (lane, id) where d.lane = l.lane)
from unnest($1::smallint[], $2::bigint[], $4::text[], $5::bigint[]) f (lane, fence, snapshot, until)
join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
where not exists (select from (select from {schema}outbox_claim c where c.lane = l.lane
		order by c.first_seq limit 1) one)
	and not exists (select from (select from {schema}outbox_held h where h.lane = l.lane order by h.id limit 1) one)
	and not exists (select from (select from {schema}outbox_parked_key k where k.lane = l.lane limit 1) one)
	and exists (select from {schema}outbox_wal w, {schema}outbox_server() c
		where w.owner = $3 and w.system_identifier = c.system and w.timeline = c.timeline)
on conflict (lane) do nothing
returning lane`

	Unstream = `-- relay: unstream
delete from {schema}outbox_streamed s using unnest($1::smallint[], $2::bigint[]) f (lane, fence), {schema}outbox_lane l
where s.lane = f.lane and l.lane = f.lane and l.fence = f.fence and l.owner = $3
returning s.lane`

	// Lanes that are given back without certainty that all their published events are deleted: a new numbering begins.
	Abandon = `-- relay: abandon
with gone as (
	delete from {schema}outbox_streamed s using unnest($1::smallint[], $2::bigint[]) f (lane, fence),
		{schema}outbox_lane l
	where s.lane = f.lane and l.lane = f.lane and l.fence = f.fence and l.owner = $3
	returning s.lane
)
update {schema}outbox_meta m
set incarnation = greatest(m.incarnation + 1, extract(epoch
	from clock_timestamp() - timestamptz '2020-01-01 00:00:00+00')::integer),
	system_identifier = c.system, timeline = c.timeline
from {schema}outbox_server() c
where exists (select from gone)
returning m.outbox_id::text || '.' || m.incarnation`

	// Whether the slot is still the same, at the position that was read.
	WALStands = `-- relay: wal stands
select coalesce((select w.slot = $1 and w.confirmed = '0/0'::pg_lsn + $2::bigint from {schema}outbox_wal w), $1 = '')`

	// The same with every lane, all of which are locked, if the slot is unchanged.
	AbandonAll = `-- relay: abandon all
with gone as (
	delete from {schema}outbox_streamed s
	where coalesce((select w.slot = $1 and w.confirmed = '0/0'::pg_lsn + $2::bigint from {schema}outbox_wal w), $1 = '')
	returning s.lane
)
update {schema}outbox_meta m
set incarnation = greatest(m.incarnation + 1, extract(epoch
	from clock_timestamp() - timestamptz '2020-01-01 00:00:00+00')::integer),
	system_identifier = c.system, timeline = c.timeline
from {schema}outbox_server() c
where exists (select from gone)
returning m.outbox_id::text || '.' || m.incarnation`

	// An array of ctids allows no other plan, as in settle. Rows of the outbox are never updated, so none has moved.
	StreamedGone = `-- relay: streamed gone
delete from only {schema}outbox_event e where e.ctid = any (array(
	select r.ctid from unnest($1::smallint[], $2::bigint[]) u (lane, id) cross join lateral (
		select e.ctid from only {schema}outbox_event e where e.lane = u.lane and e.id = u.id limit 1) r))`

	StreamedArchived = `-- relay: streamed archived
with found as materialized (
	select r.ctid as row, u.seq from unnest($1::smallint[], $2::bigint[], $3::bigint[]) u (lane, id, seq) cross
	join lateral (
		select e.ctid from only {schema}outbox_event e where e.lane = u.lane and e.id = u.id limit 1) r
), gone as (
	delete from only {schema}outbox_event e using found k where e.ctid = k.row
	returning e.*, k.seq
)
insert into {schema}outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type, content_type,
	headers, payload, event_time, created_at)
select $4, -1, seq, id, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time,
	created_at
from gone order by seq`

	NextDue = `-- relay: next due
select extract(epoch from min(d.due) - clock_timestamp())::float8 from generate_series(0, 31) l (lane) cross
	join lateral (
	select s.due from {schema}outbox_scheduled s where s.lane = l.lane order by s.due limit 1) d`

	StatusWAL = `-- relay: status wal
select w.slot, extract(epoch from clock_timestamp() - w.confirmed_at)::float8, coalesce(b.name, ''),
	(select count(*) from {schema}outbox_streamed), s.slot_name is not null, coalesce(s.active, false),
	coalesce(s.wal_status, ''),
	case when s.wal_status = 'lost' then 0 else s.safe_wal_size end,
	greatest(coalesce(c.lsn - s.confirmed_flush_lsn, 0), 0)::bigint,
	coalesce(c.lsn - s.restart_lsn, 0)::bigint
from {schema}outbox_wal w
cross join {schema}outbox_server() c
left join pg_replication_slots s on s.slot_name = w.slot
left join {schema}relay_member b on b.owner = w.owner
where w.slot <> ''`
)
