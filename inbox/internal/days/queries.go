package days

// SQL on the days and on inbox_message_any.

// The state for maintenance: the tables' schema, the days, and the partitions: attached, pending (left by an
// interrupted DETACH) and detached but not dropped. Then the days of released ids, whether this role has the owner's
// rights, and the last day until which the clock is believed.
const sqlDays = `-- inbox: days
select p.relnamespace::regnamespace::text || '.',
	floor(extract(epoch from clock_timestamp()) / 86400)::integer,
	d.dropped_before - date '1970-01-01',
	coalesce((select max(window_days) from {schema}inbox_consumer where retired_at is null), 0),
	array(select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = p.oid and not i.inhdetachpending order by 1),
	array(select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = p.oid and i.inhdetachpending order by 1),
	array(select c.relname::text from pg_class c where c.relnamespace = p.relnamespace and c.relkind = 'r'
		and c.relname ~ '^inbox_message_[0-9]{8}$' and not exists (select from pg_inherits i where i.inhrelid = c.oid)
		order by 1),
	array(select distinct (('x' || left(replace(r.message_id::text, '-', ''), 12))::bit(48)::bigint / 86400000)::integer
		from {schema}inbox_parked r where r.state = 'releasing' and substr(r.message_id::text, 15, 1) = '7' order by 1
		limit 100),
	pg_has_role(p.relowner, 'usage'),
	coalesce(d.believed_until - date '1970-01-01', -1),
	coalesce((select t.partdefid::regclass::text from pg_partitioned_table t where t.partrelid = p.oid
		and t.partdefid <> 0), '')
from {schema}inbox_days d, pg_class p where p.oid = '{schema}inbox_message'::regclass`

// No day is created while dropped_before is raised. The second number is the table's oid, because each schema may have
// an inbox.
const sqlLockDays = `-- inbox: lock the days
select set_config('lock_timeout', coalesce(nullif($1::text, ''), current_setting('lock_timeout')), true),
	pg_advisory_xact_lock(1701209710, '{schema}inbox_message'::regclass::oid::integer)::text`

// The function runs with its owner's rights: see the migration.
const sqlMakeDay = `-- inbox: make a day
select {schema}inbox_make_day($1::text::date)`

const sqlDropDayFor = `-- inbox: have a day dropped
select {schema}inbox_drop_day($1::text::date)`

const sqlBelieve = `-- inbox: believe the clock
update {schema}inbox_days set believed_until = greatest(believed_until, date '1970-01-01' + $1::integer)
where believed_until is null or believed_until < date '1970-01-01' + $1::integer`

// dropped_before only rises. It follows the longest window of all consumers, because they share the days.
const sqlRaise = `-- inbox: raise the mark
update {schema}inbox_days set dropped_before = date '1970-01-01' + (t.today - t.longest)
from (select floor(extract(epoch from clock_timestamp()) / 86400)::integer as today, max(window_days) as longest
	from {schema}inbox_consumer where retired_at is null) t
where dropped_before < date '1970-01-01' + (t.today - t.longest)`

const sqlDetachDay = `-- inbox: detach a day
alter table {schema}inbox_message detach partition {schema}{table} concurrently`

const sqlFinalizeDay = `-- inbox: finalize a detach
alter table {schema}inbox_message detach partition {schema}{table} finalize`

const sqlDropLock = `-- inbox: lock timeout of a drop
select set_config('lock_timeout', coalesce(nullif($1::text, ''), current_setting('lock_timeout')), true)`

const sqlDropDay = `-- inbox: drop a day
drop table if exists {schema}{table}`

const sqlConsumers = `-- inbox: consumers
select consumer_name, window_days from {schema}inbox_consumer order by consumer_name`

// Rows of UUIDv7s are history from before the floor. They must refuse late duplicates until dropped_before has passed
// the floor, and one day longer for transactions that read an older dropped_before.
const sqlCleanAny = `-- inbox: clean any
with old as materialized (
	select a.ctid from {schema}inbox_message_any a, {schema}inbox_consumer c, {schema}inbox_days d
	where c.consumer_name = $1::text and a.consumer_name = c.consumer_name
		and a.processed_at < now() - make_interval(days => $2::integer)
		and (get_byte(uuid_send(a.message_id), 6) >> 4 <> 7 or get_byte(uuid_send(a.message_id), 8) >> 6 <> 2
			or d.dropped_before > c.floor + 1)
	limit $3::integer
)
delete from {schema}inbox_message_any a using old where a.ctid = old.ctid`

// Also announces the deletion to inbox_kept.
const sqlLockClean = `-- inbox: lock the cleaning
select pg_try_advisory_xact_lock(1701209711, '{schema}inbox_message'::regclass::oid::integer)
	and set_config('effectonce.inbox', 'forget', true) = 'forget'`
