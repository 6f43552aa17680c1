package doctor

const (
	// A COMMIT waits for one of a plain list, for as many as "first 2 (a, b)" and "any 2 (a, b)" say.
	queryServer = `-- doctor: server
select pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', current_setting('server_version'),
	current_setting('server_version_num')::int,
	current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
	current_setting('synchronous_standby_names'),
	coalesce(substring(current_setting('synchronous_standby_names')
		from '(?i)^[[:space:]]*(?:first|any)?[[:space:]]*([0-9]+)[[:space:]]*[(]')::int, 1),
	current_setting('autovacuum') = 'on' and current_setting('track_counts') = 'on',
	r.streaming, r.in_sync, r.hidden,
	coalesce((select s.ssl from pg_stat_ssl s where s.pid = pg_backend_pid()), false),
	(select max(greatest(age(d.datfrozenxid), mxid_age(d.datminmxid))) from pg_database d),
	current_setting('vacuum_failsafe_age')::int
from (select count(*) filter (where state = 'streaming'), count(*) filter (where sync_state in ('sync', 'quorum')),
	count(*) filter (where state is null) from pg_stat_replication) r (streaming, in_sync, hidden)`

	// Asked before statements that only Postgres understands.
	queryVersion = `-- doctor: version
select version(), to_regclass('pg_dist_partition') is not null`

	// Citus lists its distributed and replicated tables here.
	queryDistributed = `-- doctor: distributed
select coalesce(string_agg(p.logicalrelid::text, ', ' order by p.logicalrelid::text), '') from pg_dist_partition p
join pg_class c on c.oid = p.logicalrelid where c.relname ~ '^(outbox|inbox|relay_member|idempotency|effectonce)'`

	queryUnlogged = `-- doctor: unlogged tables
select coalesce(string_agg(c.oid::regclass::text, ', ' order by c.oid::regclass::text), '') from pg_class c
where c.relkind = 'r' and c.relpersistence = 'u'
	and case $1 when '' then pg_table_is_visible(c.oid) else c.relnamespace = to_regnamespace(quote_ident($1)) end
	and c.relname ~ '^(outbox|inbox|relay_member|idempotency|effectonce)'`

	// An archive has no key, and goose's table has one that is not needed.
	queryUnkeyed = `-- doctor: tables without their keys
select coalesce(string_agg(c.oid::regclass::text, ', ' order by c.oid::regclass::text), '') from pg_class c
where c.relkind in ('r', 'p') and c.relname = any ($2) and c.relname not in ('outbox_archive', 'effectonce_migration')
	and case $1 when '' then pg_table_is_visible(c.oid) else c.relnamespace = to_regnamespace(quote_ident($1)) end
	and (not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and i.indisvalid)
		or c.relname = 'inbox_parked' and not exists (select from pg_index i where i.indrelid = c.oid
			and i.indisunique and not i.indisprimary and i.indisvalid))`

	// A trigger that a partition inherits is listed once. Disabled ones, and those for a replica's role, do nothing
	// here. A partition must have what its table must have.
	queryTriggers = `-- doctor: triggers
with named as (
	select c.oid, c.relname::text as name from pg_class c where c.relname = any ($1) and c.relkind in ('r', 'p')
		and case $2 when '' then pg_table_is_visible(c.oid) else c.relnamespace = to_regnamespace(quote_ident($2)) end
), tables as (
	select n.oid, n.name from named n
	union all
	select h.inhrelid, n.name from pg_inherits h join named n on n.oid = h.inhparent
)
select 'missing', format('trigger %I on %s', split_part(o.name, ' ', 2), c.oid::regclass) as what, '', 0
from unnest($3::text[]) o (name) join tables c on c.name = split_part(o.name, ' ', 1)
where not exists (select from pg_trigger t join pg_proc p on p.oid = t.tgfoid where t.tgrelid = c.oid
	and concat_ws(' ', c.name, t.tgname, p.proname) = o.name and t.tgenabled in ('O', 'A'))
union all
select concat_ws(' ', c.name, t.tgname, p.proname), format('trigger %I on %s', t.tgname, c.oid::regclass),
	p.oid::regprocedure::text, t.tgtype::int
from pg_trigger t join tables c on c.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid
where not t.tgisinternal and t.tgparentid = 0 and t.tgenabled in ('O', 'A')
union all
select '', format('rule %I on %s', r.rulename, c.oid::regclass), '', 0
from pg_rewrite r join tables c on c.oid = r.ev_class where r.rulename <> '_RETURN' and r.ev_enabled in ('O', 'A')
order by 2`

	// Postgres 18 refuses updates and deletes of a table whose replica identity has a generated column that a
	// publication leaves out.
	queryUnpublished = `-- doctor: unpublished columns
select coalesce(string_agg(distinct t.pubname::text, ', '), ''),
	coalesce(string_agg(distinct c.oid::regclass::text, ', '), '')
from pg_publication p join pg_publication_tables t on t.pubname = p.pubname
join pg_namespace n on n.nspname = t.schemaname join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
join pg_index i on i.indrelid = c.oid
	and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end
join pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey) and a.attgenerated <> ''
where current_setting('server_version_num')::int >= 180000 and (p.pubupdate or p.pubdelete)
	and case $1 when '' then pg_table_is_visible(c.oid) else c.relnamespace = to_regnamespace(quote_ident($1)) end
	and not a.attname = any (t.attnames) and c.relname ~ '^(outbox|inbox|relay_member|idempotency|effectonce)'`

	// A pooler gives its own number for a session.
	queryLimitWaits = `-- doctor: limit waits
select set_config('lock_timeout', '3s', false)
where pg_backend_pid() = $1::bigint and current_setting('lock_timeout') = '0'`

	// Only this lock blocks readers, also while a session waits for it. An index of a table counts as the table.
	queryBlockers = `-- doctor: blockers
with named as (
	select c.oid from pg_class c where c.relname = any ($1)
		and case $2 when '' then pg_table_is_visible(c.oid) else c.relnamespace = to_regnamespace(quote_ident($2)) end
), tables as (
	select n.oid from named n
	union all
	select h.inhrelid from pg_inherits h join named n on n.oid = h.inhparent
), places as (
	select t.oid, t.oid as place from tables t
	union all
	select t.oid, i.indexrelid from tables t join pg_index i on i.indrelid = t.oid
)
select string_agg(distinct p.oid::regclass::text, ', '), coalesce(l.pid, 0)::bigint, bool_or(l.granted),
	coalesce(array_to_string(pg_blocking_pids(l.pid), ', '), ''), coalesce(a.application_name, ''),
	coalesce(a.state, ''), coalesce(extract(epoch from clock_timestamp() - a.xact_start), 0)::float8,
	coalesce(left(a.query, 100), ''), a.xact_start is null and l.pid is not null
from pg_locks l join places p on p.place = l.relation left join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and l.pid is distinct from pg_backend_pid()
	and l.database = (select d.oid from pg_database d where d.datname = current_database())
group by l.pid, a.application_name, a.state, a.xact_start, a.query
order by bool_or(l.granted) desc, a.xact_start`

	// Who waits for a row has a lock on its table, and waits for a transaction or a tuple. A session that itself waits
	// is not named: the one that it waits for is.
	queryWaits = `-- doctor: waits
with named as (
	select c.oid from pg_class c where c.relname = any ($1)
		and case $2 when '' then pg_table_is_visible(c.oid) else c.relnamespace = to_regnamespace(quote_ident($2)) end
), tables as (
	select n.oid from named n
	union all
	select h.inhrelid from pg_inherits h join named n on n.oid = h.inhparent
), locks as materialized (
	select l.pid, l.granted, l.waitstart, l.locktype, t.oid from pg_locks l left join tables t on t.oid = l.relation
		and l.database = (select d.oid from pg_database d where d.datname = current_database())
	where l.pid is distinct from pg_backend_pid()
), waiting as materialized (
	select w.pid, clock_timestamp() - w.waitstart as since from locks w
	where not w.granted and w.waitstart < clock_timestamp() - interval '5 seconds' and (w.oid is not null
		or w.locktype in ('transactionid', 'tuple')
			and exists (select from locks h where h.pid = w.pid and h.granted and h.oid is not null))
)
select b.pid::bigint, count(*), extract(epoch from max(w.since))::float8, coalesce(a.application_name, ''),
	coalesce(a.state, ''), coalesce(extract(epoch from clock_timestamp() - a.xact_start), 0)::float8,
	coalesce(left(a.query, 100), ''), a.xact_start is null and b.pid > 0
from waiting w cross join lateral (select distinct unnest(pg_blocking_pids(w.pid))) b (pid)
left join pg_stat_activity a on a.pid = b.pid
where not exists (select from locks l where l.pid = b.pid and not l.granted)
group by b.pid, a.application_name, a.state, a.xact_start, a.query order by 3 desc limit 5`

	queryOtherOutboxes = `-- doctor: other outboxes
select n.nspname::text, has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')
	and has_table_privilege(m.oid, 'select')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
join pg_class m on m.relnamespace = n.oid and m.relname = 'relay_member'
where c.relname = 'outbox_event' and c.relkind in ('r', 'p')
	and case $1 when '' then not pg_table_is_visible(c.oid) else n.nspname <> $1 end
order by 1`

	queryOtherOutbox = `-- doctor: other outbox
select (select count(*) from (select from {schema}outbox_event limit 1001) e),
	exists (select from {schema}relay_member m where m.lease_until > clock_timestamp())`

	queryNextToTables = `-- doctor: next to the tables
select set_config('temp_tablespaces', '', true), set_config('work_mem', '64kB', true)`

	// A megabyte, in a temporary file.
	queryWrites = `-- doctor: writes
with w as materialized (select repeat('x', 8000) as t from generate_series(1, 128)) select count(t) from w`

	queryBackend = `-- doctor: backend
select pg_backend_pid()`

	queryClock = `-- doctor: clock
select clock_timestamp()`

	// The horizon of other sessions is visible to every role, their state and statements are not. A background worker
	// need not have a state.
	querySnapshot = `-- doctor: oldest snapshot
select a.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, a.backend_type, 'hidden'),
	coalesce(extract(epoch from clock_timestamp() - a.xact_start), 0)::float8,
	coalesce(max(age(a.backend_xmin)) filter (where coalesce(a.state, a.backend_type) is null) over (), -1)
from pg_stat_activity a where a.backend_xmin is not null and a.pid <> pg_backend_pid()
order by a.xact_start nulls last, age(a.backend_xmin) desc limit 1`

	queryIdle = `-- doctor: idle in transaction
select count(*), coalesce(min(a.pid) filter (where a.n = 1), 0), coalesce(max(a.age), 0)::float8,
	coalesce(min(a.application_name) filter (where a.n = 1), ''),
	(select count(*) from pg_stat_activity h where h.datname = current_database()
		and h.query = '<insufficient privilege>')
from (select pid, concat_ws(' ', nullif(application_name, ''), 'of ' || usename, 'on ' || host(client_addr))
		as application_name, extract(epoch from clock_timestamp() - xact_start) as age,
	row_number() over (order by xact_start) as n
	from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()
	and (xact_start < clock_timestamp() - $1::float8 * interval '1 second'
		or state_change < clock_timestamp() - $2::float8 * interval '1 second')) a`

	queryPrepared = `-- doctor: prepared transactions
select p.gid, p.database, extract(epoch from clock_timestamp() - p.prepared)::float8
from pg_prepared_xacts p where p.prepared < clock_timestamp() - $1::float8 * interval '1 second' order by p.prepared
	limit 5`

	// Without the position of the WAL, which a role may lack the right to read.
	querySlots = `-- doctor: replication slots
select s.slot_name, coalesce(s.database, ''), s.active, coalesce(greatest(age(s.xmin), age(s.catalog_xmin)), 0),
	s.restart_lsn is not null, coalesce(s.wal_status, '')
from pg_replication_slots s order by 1`

	// Settings and columns of Postgres 17 are read in a form that older servers accept. A standby with
	// hot_standby_feedback keeps an xmin in its slot, and one with logical slots a catalog_xmin.
	queryFailoverSlot = `-- doctor: failover slot
with waits as (
	select trim(w.name) as name from unnest(string_to_array(nullif(current_setting('synchronized_standby_slots', true),
		''), ',')) w (name)
), physical as (
	select s.slot_name::text as name, s.active_pid, s.xmin, s.catalog_xmin from pg_replication_slots s
	where s.slot_type = 'physical'
)
select current_setting('server_version_num')::int,
	coalesce((select (to_jsonb(s) ->> 'failover')::boolean from pg_replication_slots s where s.slot_name = $1), false),
	coalesce(current_setting('synchronized_standby_slots', true), ''),
	array(select w.name from waits w where not exists (
		select from physical p where p.name = w.name and p.active_pid is not null) order by 1),
	count(r.pid), count(r.pid) filter (where p.name is null),
	array(select p.name from physical p where p.active_pid is not null and p.xmin is null order by 1),
	array(select p.name from physical p where p.active_pid is not null order by 1),
	(select count(*) from physical p where p.active_pid is not null and p.catalog_xmin is not null)
from pg_stat_replication r left join physical p on p.active_pid = r.pid
where not exists (select from pg_replication_slots l where l.slot_type = 'logical' and l.active_pid = r.pid)`

	// The setting of the connection to the primary is hidden from most roles.
	queryStandbySlot = `-- doctor: standby slot
with ours as (
	select s.slot_name, coalesce((to_jsonb(s) ->> 'synced')::boolean, false) and not s.temporary
		and coalesce(s.wal_status, '') <> 'lost' as ready
	from pg_replication_slots s where s.slot_name ~ '^effectonce_[0-9a-f]{32}$' and s.database = current_database()
)
select current_setting('server_version_num')::int,
	exists (select from pg_publication where pubname ~ '^effectonce_[0-9a-f]{32}$'),
	coalesce(current_setting('sync_replication_slots', true), 'off') = 'on',
	current_setting('hot_standby_feedback') = 'on', current_setting('primary_slot_name'),
	(select c.setting ~ 'dbname *=' from pg_settings c where c.name = 'primary_conninfo'),
	array(select s.slot_name::text from ours s where s.ready order by 1),
	array(select s.slot_name::text from ours s where not s.ready order by 1)`
)
