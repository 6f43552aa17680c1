package sql

// The figures of a Sample: every count ends at its limit, and reads begin above the floors that this relay knows, as
// its probe does. So a sample every few seconds is cheap, even with ten million rows or a pinned snapshot.
const (
	SampleEvents = `-- relay: sample events
with ids as materialized (
	select n.last_value, case when exists (select from unnest(nullif(split_part($4::text, ' ', 2), '')::xid8[]) x (xid)
		where pg_visible_in_snapshot(x.xid, pg_current_snapshot())) then 9223372036854775807 else 0 end as blind
	from {schema}outbox_event_id_seq n, pg_sequence q, {schema}outbox_server() c
	where q.seqrelid = '{schema}outbox_event_id_seq'::regclass and q.seqcache = 1 and not q.seqcycle
		and q.seqincrement = 1
		and split_part($4::text, ' ', 1) = c.system || '/' || c.timeline || '/' || q.seqrelid::oid || '/' ||
		pg_relation_filenode(q.seqrelid)
), lanes as materialized (
	select l.lane, coalesce(greatest(f.floor, (select blind from ids)), 0) as floor, l.owner is not null
		and (l.lease_until > clock_timestamp()
			or exists (select from {schema}relay_member m where m.owner = l.owner
				and m.lease_until > clock_timestamp())) as owned
	from {schema}outbox_lane l
	left join unnest($2::smallint[], $3::bigint[]) f (lane, floor) on f.lane = l.lane and f.floor <= (select last_value
		from ids)
)
select (select count(*) from (
		select from lanes l cross join lateral (select from {schema}outbox_event e where e.lane = l.lane
			and e.id > l.floor limit $1) e limit $1) n),
	array(select coalesce((select extract(epoch from clock_timestamp() - e.created_at)
		from {schema}outbox_event e where e.lane = l.lane and e.id > l.floor order by e.id limit 1), 0)::float8
		from lanes l order by l.lane),
	(select count(*) from lanes where owned),
	(select count(*) from {schema}relay_member where seen > clock_timestamp() - $5::interval
		and seen <= clock_timestamp())`

	SampleHeld = `-- relay: sample held
select count(*), count(distinct (h.topic, h.partition)) filter (where p.topic is null),
	coalesce(extract(epoch from clock_timestamp() - min(h.held_at) filter (where p.topic is null)), 0)::float8
from (select topic, partition, held_at from {schema}outbox_held limit $1) h
	left join {schema}outbox_paused_topic p on p.topic = h.topic`

	SampleParked = `-- relay: sample parked
select (select count(*) from (select from {schema}outbox_parked limit $1) p),
	count(*), count(*) filter (where state = 'releasing'), coalesce(extract(epoch from clock_timestamp() - min(since)),
		0)::float8
from (select state, since from {schema}outbox_parked_key limit $1) k`

	SampleScheduled = `-- relay: sample scheduled
select (select count(*) from (select from {schema}outbox_scheduled limit $1) s),
	coalesce((select max(extract(epoch from clock_timestamp() - d.due)) from {schema}outbox_lane l
		cross join lateral (select s.due from {schema}outbox_scheduled s where s.lane = l.lane order by s.due
			limit 1) d), 0)::float8`

	// The archive's default partition has the events without a day. The estimate of the statistics suffices: counting
	// the partition directly needs a grant on it.
	SampleTopics = `-- relay: sample topics
select (select count(*) from {schema}outbox_paused_topic),
	coalesce((select extract(epoch from clock_timestamp() - min(p.paused_at)) from {schema}outbox_paused_topic p),
		0)::float8,
	pg_stat_get_live_tuples('{schema}outbox_archive_default'::regclass)`

	// Transactions that keep dead rows. The age in ids of another role's transaction is visible to everybody, the time
	// of its start only to members of pg_read_all_stats.
	SampleHorizon = `-- relay: sample horizon
select coalesce(max(age), 0)::bigint, coalesce(extract(epoch from clock_timestamp() - min(since)), 0)::float8
from (
	select greatest(age(a.backend_xmin), age(a.backend_xid)) as age, a.xact_start as since
	from pg_stat_activity a
	where a.pid <> pg_backend_pid() and (a.backend_xmin is not null or a.backend_xid is not null)
		and (a.datname = current_database() or a.backend_type = 'walsender')
	union all
	select age(p.transaction), p.prepared from pg_prepared_xacts p where p.database = current_database()
	union all
	select age(s.xmin), null from pg_replication_slots s where s.xmin is not null
) held`
)
