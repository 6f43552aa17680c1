package inbox

// All SQL on the inbox's tables stands here or in a migration. {schema} is the prefix that pgschema makes. The texts
// about one table also have {table}: DDL takes no parameters.

const sqlBegin = `-- inbox: begin
begin isolation level read committed`

// First in every writing transaction. Without a synchronous commit the offset could be committed in Kafka for an effect
// that a crash of the database takes back. Days are counted from 1970-01-01, UTC, whatever the session's time zone is.
//
// A host that dies within the transaction must not keep its rows locked: the server asks after 10 s of silence whether
// it is there, and gives it up 15 s later. Where a pooler answers for it, the session ends when it has been idle for
// too long.
const sqlState = `-- inbox: state
select set_config('idle_in_transaction_session_timeout', case when $4::text <> '' and s.idle = '0' then $4::text else s.idle end, true),
	set_config('tcp_keepalives_idle', case $4::text when '' then current_setting('tcp_keepalives_idle') else '10' end, true),
	set_config('tcp_keepalives_interval', case $4::text when '' then current_setting('tcp_keepalives_interval') else '5' end, true),
	set_config('tcp_keepalives_count', case $4::text when '' then current_setting('tcp_keepalives_count') else '3' end, true),
	set_config('lock_timeout', coalesce(nullif($1::text, ''), current_setting('lock_timeout')), true),
	set_config('statement_timeout', coalesce(nullif($2::text, ''), current_setting('statement_timeout')), true),
	set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true),
	floor(extract(epoch from clock_timestamp()) / 86400)::integer,
	d.dropped_before - date '1970-01-01',
	coalesce(d.believed_until - date '1970-01-01', -1),
	coalesce(c.floor - date '1970-01-01', -1),
	coalesce(c.dedup, ''),
	coalesce(c.ids_until > clock_timestamp(), false)
from {schema}inbox_days d cross join (select current_setting('idle_in_transaction_session_timeout') as idle) s
left join {schema}inbox_consumer c on c.consumer_name = $3::text`

// Which database this is, and on which timeline: another one after a failover or a restore, which a pooler or a proxy
// hides.
const sqlHome = `-- inbox: home
select c.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) from pg_control_system() c`

// The ids come sorted, as the text of an array: that is one argument in every query mode of pgx.
const sqlInsertDay = `-- inbox: insert into the days
insert into {schema}inbox_message (consumer_name, message_id)
select $1::text, id from unnest($2::text::uuid[]) as id
on conflict do nothing returning message_id`

const sqlInsertAny = `-- inbox: insert into any
insert into {schema}inbox_message_any (consumer_name, message_id)
select $1::text, id from unnest($2::text::uuid[]) as id
on conflict do nothing returning message_id`

const sqlAdopt = `-- inbox: adopt the open transaction`

const sqlCommit = `-- inbox: commit
commit`

// For a transaction that writes nothing and decides by the rows of others: a row is visible, and may be lost in a
// failover, when the wait of its COMMIT for a synchronous standby was cut. Only a commit that has written waits for the
// standby, and then for everything before it. It locks no row, so that duplicates of many partitions do not wait for
// each other.
const sqlBarrier = `-- inbox: barrier
select pg_logical_emit_message(true, 'effectonce', ''::text)`

const sqlRollback = `-- inbox: roll back
rollback`

// The floor is the day of the first start, and the strategy that of the first start; later starts only renew the
// window.
const sqlRegister = `-- inbox: register the consumer
insert into {schema}inbox_consumer as c (consumer_name, floor, window_days, dedup)
values ($1::text, (clock_timestamp() at time zone 'utc')::date, $2::integer, $3::text)
on conflict (consumer_name) do update set window_days = excluded.window_days, seen_at = clock_timestamp(), retired_at = null
returning dedup`

// Written at most every half minute by all processes of a program; a clock that went back does not keep it silent. The
// others are those that have said so within three minutes.
const sqlPresent = `-- inbox: say who runs
with mine as (
	update {schema}inbox_consumer c
	set programs = coalesce((select jsonb_object_agg(p.key, p.value) from jsonb_each(c.programs) p
			where (p.value ->> 'seen')::timestamptz > clock_timestamp() - interval '1 day'), '{}')
		|| jsonb_build_object($2::text, jsonb_build_object('host', $3::text, 'seen', clock_timestamp()))
	where c.consumer_name = $1::text and coalesce((c.programs -> $2::text ->> 'seen')::timestamptz
		not between clock_timestamp() - interval '30 s' and clock_timestamp(), true)
)
select p.key, coalesce(p.value ->> 'host', ''), (p.value ->> 'seen')::timestamptz
from {schema}inbox_consumer c, jsonb_each(c.programs) p
where c.consumer_name = $1::text and p.key <> $2::text
	and (p.value ->> 'seen')::timestamptz > clock_timestamp() - interval '3 min'`

// What maintenance needs to know: where the table lives, the days, and which partitions there are. A pending one was
// left by an interrupted DETACH; loose ones were detached and not dropped. Released are the days of ids that an
// operator released although they are too far ahead. The last column: this role may what the owner may.
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
		and c.relname ~ '^inbox_message_[0-9]{8}$' and not exists (select from pg_inherits i where i.inhrelid = c.oid) order by 1),
	array(select distinct (('x' || left(replace(r.message_id::text, '-', ''), 12))::bit(48)::bigint / 86400000)::integer
		from {schema}inbox_parked r where r.state = 'releasing' and substr(r.message_id::text, 15, 1) = '7' order by 1 limit 100),
	pg_has_role(p.relowner, 'usage'),
	coalesce(d.believed_until - date '1970-01-01', -1)
from {schema}inbox_days d, pg_class p where p.oid = '{schema}inbox_message'::regclass`

// Held by whoever makes days or raises dropped_before, for the one must not happen during the other. The second number
// is the table, for there may be an inbox in each schema.
const sqlLockDays = `-- inbox: lock the days
select set_config('lock_timeout', coalesce(nullif($1::text, ''), current_setting('lock_timeout')), true),
	pg_advisory_xact_lock(1701209710, '{schema}inbox_message'::regclass::oid::integer)::text`

// As the owner, whoever calls: see the migration.
const sqlMakeDay = `-- inbox: make a day
select {schema}inbox_make_day($1::text::date)`

const sqlDropDayFor = `-- inbox: have a day dropped
select {schema}inbox_drop_day($1::text::date)`

const sqlBelieve = `-- inbox: believe the clock
update {schema}inbox_days set believed_until = greatest(believed_until, date '1970-01-01' + $1::integer)
where believed_until is null or believed_until < date '1970-01-01' + $1::integer`

// dropped_before only rises, and by the longest window of all consumers: a day is shared.
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

// One cleaner at a time. Rows of UUIDv7s are history from before the floor: they are what refuses a late duplicate
// until dropped_before has passed the floor, and a day more for transactions that still saw it below.
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

const sqlLockClean = `-- inbox: lock the cleaning
select pg_try_advisory_xact_lock(1701209711, '{schema}inbox_message'::regclass::oid::integer)`
