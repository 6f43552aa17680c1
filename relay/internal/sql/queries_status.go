package sql

const (
	StatusLanes = `-- relay: status lanes
select l.lane, l.owner, coalesce(m.name, ''), l.fence,
	case when greatest(l.lease_until, m.lease_until) > clock_timestamp() then extract(epoch
		from greatest(l.lease_until, m.lease_until) - clock_timestamp()) else 0 end::float8,
	coalesce((select sum(cardinality(c.ids)) from {schema}outbox_claim c where c.lane = l.lane), 0)::bigint,
	coalesce((select extract(epoch from clock_timestamp() - e.created_at)
		from {schema}outbox_event e where e.lane = l.lane order by e.id limit 1), 0)::float8,
	exists (select from {schema}outbox_event e where e.lane = l.lane),
	(select count(*) from {schema}outbox_held h where h.lane = l.lane), (select count(*) from {schema}outbox_parked p
		where p.lane = l.lane)
from {schema}outbox_lane l left join {schema}relay_member m on m.owner = l.owner
order by l.lane`

	// The lanes of each relay, including relays without lanes, and the free lanes.
	StatusRelays = `-- relay: status relays
with lane as materialized (
	select l.lane, l.owner, l.owner is not null
			and greatest(l.lease_until, m.lease_until) <= clock_timestamp() as overdue,
		coalesce((select sum(cardinality(c.ids)) from {schema}outbox_claim c where c.lane = l.lane), 0) as claimed,
		(select e.created_at from {schema}outbox_event e where e.lane = l.lane order by e.id limit 1) as oldest
	from {schema}outbox_lane l left join {schema}relay_member m on m.owner = l.owner
), share as (
	select owner, array_agg(lane order by lane) as lanes, count(*) filter (where overdue) as overdue,
		sum(claimed)::bigint as claimed, min(oldest) as oldest
	from lane group by owner
)
select coalesce(s.owner, m.owner), coalesce(m.name, ''), coalesce(s.lanes, '{}'), coalesce(s.overdue, 0),
	coalesce(s.claimed, 0), coalesce(extract(epoch from clock_timestamp() - s.oldest), 0)::float8,
	extract(epoch from clock_timestamp() - m.seen)::float8, coalesce(m.lease_until > clock_timestamp(), false),
	coalesce(extract(epoch from m.seen - m.joined), 0)::float8, coalesce(m.version, ''), coalesce(m.trouble, ''),
	extract(epoch from clock_timestamp() - m.trouble_since)::float8,
	extract(epoch from clock_timestamp() - m.acked_at)::float8
from share s full join {schema}relay_member m on m.owner = s.owner
order by 2, 1`

	// Open transactions that have appended, the oldest first. Without pg_read_all_stats a role does not see since when
	// those of other roles are open: they are left out.
	StatusOpen = `-- relay: status open
select a.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
	extract(epoch from clock_timestamp() - a.xact_start)::float8
from pg_stat_activity a
where a.xact_start < clock_timestamp() - $1::interval and a.pid in (select l.pid from pg_locks l
	where l.granted and l.locktype = 'relation' and l.mode = 'RowExclusiveLock'
		and l.relation = '{schema}outbox_event'::regclass
		and l.database = (select d.oid from pg_database d where d.datname = current_database()))
order by a.xact_start limit 5`

	StatusTopics = `-- relay: status topics
select e.topic, count(*), extract(epoch from clock_timestamp() - min(e.created_at))::float8
from {schema}outbox_event e group by e.topic order by e.topic`

	// Without a limit, other than in a sample.
	StatusParked = `-- relay: status parked
select coalesce(extract(epoch from clock_timestamp() - min(k.since)), 0)::float8 from {schema}outbox_parked_key k`
)
