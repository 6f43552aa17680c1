package sql

// The questions of Diagnose. The checks of rights come first: they need no rights.
const (
	MissingRights = `-- relay: missing rights
select n.kind || ' ' || n.name || ': ' || n.want
from unnest($1::text[], $2::text[], $3::text[]) n (kind, name, want)
where not case n.kind
	when 'table' then has_table_privilege(to_regclass('{schema}' || n.name), n.want)
		or n.want in ('select', 'insert', 'update') and has_any_column_privilege(to_regclass('{schema}' || n.name),
			n.want)
	when 'sequence' then has_sequence_privilege(to_regclass('{schema}' || n.name), n.want)
	else has_function_privilege(to_regprocedure('{schema}' || n.name), n.want) end
union
select 'table ' || n.name || ': bypassrls, as row-level security is enabled'
from unnest($1::text[], $2::text[]) n (kind, name)
where n.kind = 'table' and row_security_active(to_regclass('{schema}' || n.name))
order by 1`

	ByStart = `-- relay: by start
select timeline like 'started-%' from {schema}outbox_server()`

	Sequence = `-- relay: sequence
select q.seqcache, q.seqincrement, q.seqcycle, (select case when n.is_called then n.last_value else n.last_value - 1 end
	from {schema}outbox_event_id_seq n),
	greatest((select max(h.id) from {schema}outbox_lane l cross join lateral (select e.id from {schema}outbox_event e
		where e.lane = l.lane order by e.id desc limit 1) h),
		(select max(h.id) from {schema}outbox_held h), (select max(p.id) from {schema}outbox_parked p), 0)
from pg_sequence q where q.seqrelid = '{schema}outbox_event_id_seq'::regclass`

	// The first rows of each lane: an upgrade that changed the hash leaves its old rows in their old lanes.
	Misplaced = `-- relay: misplaced
select count(*) from {schema}outbox_lane l cross join lateral (
	select e.lane, coalesce(nullif(e.key, ''), e.message_id::text) as hashed from {schema}outbox_event e
	where e.lane = l.lane order by e.id limit 100) e
where e.lane <> (hashtextextended(e.hashed collate "C", 0) & 31)`

	// A lane that is overdue for longer than a few heartbeats has no relay that takes it.
	Leases = `-- relay: leases
select count(*) filter (where l.owner is null), count(*) filter (where l.owner is not null
	and l.lease_until <= clock_timestamp()
		and not exists (select from {schema}relay_member m where m.owner = l.owner
			and m.lease_until > clock_timestamp())),
	(select count(*) from {schema}relay_member where greatest(seen + interval '30 seconds', lease_until)
		> clock_timestamp() and seen <= clock_timestamp()),
	count(*) filter (where exists (select from {schema}outbox_event e where e.lane = l.lane)),
	coalesce((select extract(epoch from max(clock_timestamp() - o.created_at)) from {schema}outbox_lane w
		cross join lateral (select e.created_at from {schema}outbox_event e where e.lane = w.lane order by e.id
			limit 1) o), 0)::float8,
	exists (select from {schema}relay_member m where m.lease_until > clock_timestamp()
		and m.acked_at > clock_timestamp() - interval '30 seconds')
from {schema}outbox_lane l`

	// A relay that stops gives up its row; the others delete it after ten leases.
	Silent = `-- relay: silent
select coalesce(nullif(m.name, ''), m.owner::text), extract(epoch from clock_timestamp() - m.seen)::float8
from {schema}relay_member m
where m.lease_until <= clock_timestamp() and m.seen <= clock_timestamp() - interval '30 seconds'
order by m.seen desc limit 5`

	// Their names (start.Session) and roles are visible to every role.
	RelaySessions = `-- relay: relay sessions
with sessions as (
	select a.usename as role, count(*) as n from pg_stat_activity a
	where a.datname = current_database() and a.application_name like 'effectonce relay _%' and a.usename is not null
	group by 1
)
select s.role::text, s.n, array(
	select n.kind || ' ' || n.name || ': ' || n.want
	from unnest($1::text[], $2::text[], $3::text[]) n (kind, name, want)
	where not case n.kind
		when 'table' then has_table_privilege(s.role, to_regclass('{schema}' || n.name), n.want)
			or n.want in ('select', 'insert', 'update')
				and has_any_column_privilege(s.role, to_regclass('{schema}' || n.name), n.want)
		when 'sequence' then has_sequence_privilege(s.role, to_regclass('{schema}' || n.name), n.want)
		else has_function_privilege(s.role, to_regprocedure('{schema}' || n.name), n.want) end
	union
	select 'schema ' || c.relnamespace::regnamespace || ': usage' from pg_class c
	where c.oid = '{schema}relay_member'::regclass and not has_schema_privilege(s.role, c.relnamespace, 'usage')
	order by 1),
	exists (select from pg_class c where c.relname = 'relay_member' and c.oid <> '{schema}relay_member'::regclass)
from sessions s order by 1`

	Versions = `-- relay: versions
select coalesce(nullif(m.version, ''), 'no version') || ' (' ||
	string_agg(coalesce(nullif(m.name, ''), m.owner::text), ', ' order by m.name) || ')'
from {schema}relay_member m where m.lease_until > clock_timestamp() group by m.version order by m.version`

	Troubled = `-- relay: troubled
select coalesce(nullif(m.name, ''), m.owner::text) || ', for ' || date_trunc('second', m.seen - m.trouble_since)
	|| ': ' || m.trouble
from {schema}relay_member m
where m.lease_until > clock_timestamp() and m.trouble <> '' and m.trouble not like 'holds %'
	and m.seen - m.trouble_since >= interval '10 seconds'
order by 1 limit 5`

	Holding = `-- relay: holding
select coalesce(nullif(m.name, ''), m.owner::text) || ' ' || m.trouble from {schema}relay_member m
where m.lease_until > clock_timestamp() and m.trouble like 'holds %' order by 1 limit 5`

	Aside = `-- relay: aside
select (select count(*) from {schema}outbox_parked), (select count(*) from {schema}outbox_parked_key),
	(select count(*) from {schema}outbox_scheduled where due < clock_timestamp() - interval '1 minute')`

	WaitingTopics = `-- relay: waiting topics
select distinct e.topic from {schema}outbox_lane l cross join lateral (
	select e.topic from {schema}outbox_event e where e.lane = l.lane order by e.id limit 100) e order by 1`

	// A topic is pinned before anything is sent there: what was acked since does not wait any more.
	Unacked = `-- relay: unacked
select t.topic from {schema}outbox_topic t join (
	select w.topic, min(w.created_at) as first from (
		select h.topic, h.created_at from {schema}outbox_held h
		union all
		select p.topic, p.created_at from {schema}outbox_parked p
		union all
		select e.topic, e.created_at from {schema}outbox_lane l cross join lateral (
			select e.topic, e.created_at from {schema}outbox_event e where e.lane = l.lane order by e.id limit 100) e
	) w group by w.topic
) w on w.topic = t.topic
where w.first < t.pinned_at order by 1`

	Cluster = `-- relay: cluster
select coalesce(kafka_cluster, '') from {schema}outbox_meta`

	Vacuum = `-- relay: vacuum
select s.n_live_tup, s.n_dead_tup, extract(epoch from clock_timestamp() - greatest(s.last_vacuum,
	s.last_autovacuum))::float8,
	coalesce('autovacuum_enabled=false' = any (c.reloptions) or 'autovacuum_enabled=off' = any (c.reloptions), false)
from pg_class c join pg_stat_all_tables s on s.relid = c.oid where c.oid = '{schema}outbox_event'::regclass`
)
