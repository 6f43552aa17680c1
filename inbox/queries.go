package inbox

// All SQL on the inbox's tables is in these files or in a migration. {schema} is the prefix that pgschema makes.
// Statements on a single day also have {table}, because DDL takes no parameters.

const sqlBegin = `-- inbox: begin
begin isolation level read committed`

// The database and its timeline. They differ after a failover or a restore, which a pooler or a proxy hides.
const sqlHome = `-- inbox: home
select c.system || '/' || c.timeline from {schema}inbox_server() c`

// The ids are sorted. They are passed as the text of an array: one argument in every query mode of pgx. The conflict is
// named, so that a table without its primary key, as half a restore leaves it, takes no id a second time.
const sqlInsertDay = `-- inbox: insert into the days
insert into {schema}inbox_message (consumer_name, message_id, content)
select $1::text, id, content from unnest($2::text::uuid[], $3::text::bigint[]) as t (id, content)
on conflict (consumer_name, message_id) do nothing returning message_id`

// While no repeat is expected. An id that is known is an error: the transaction begins again with the statement above.
// It costs Postgres half as much: no look at the index before the insert, and no second record in the WAL.
const sqlInsertNewDay = `-- inbox: insert new ones into the days
insert into {schema}inbox_message (consumer_name, message_id, content)
select $1::text, id, content from unnest($2::text::uuid[], $3::text::bigint[]) as t (id, content)`

const sqlInsertNewAny = `-- inbox: insert new ones into any
insert into {schema}inbox_message_any (consumer_name, message_id, content)
select $1::text, id, content from unnest($2::text::uuid[], $3::text::bigint[]) as t (id, content)`

// After these inserts, whose locks let no key go until the commit: without it they take an id a second time.
const sqlHaveKeys = `-- inbox: have keys
select count(*) = 2 from pg_index where indisprimary and indisvalid
	and indrelid in ('{schema}inbox_message'::regclass, '{schema}inbox_message_any'::regclass)`

// A single id, without the cost of arrays.
const sqlInsertOneDay = `-- inbox: insert one into the days
insert into {schema}inbox_message (consumer_name, message_id, content)
values ($1::text, $2::text::uuid, $3::text::bigint)
on conflict (consumer_name, message_id) do nothing returning message_id`

const sqlInsertAny = `-- inbox: insert into any
insert into {schema}inbox_message_any (consumer_name, message_id, content)
select $1::text, id, content from unnest($2::text::uuid[], $3::text::bigint[]) as t (id, content)
on conflict (consumer_name, message_id) do nothing returning message_id`

const sqlInsertOneAny = `-- inbox: insert one into any
insert into {schema}inbox_message_any (consumer_name, message_id, content)
values ($1::text, $2::text::uuid, $3::text::bigint)
on conflict (consumer_name, message_id) do nothing returning message_id`

const sqlAdopt = `-- inbox: adopt the open transaction`

// inbox_guard tells this COMMIT from an effect's by its words.
const sqlCommit = `-- inbox: commit
commit and no chain`

// For a transaction that writes nothing and decides by rows of other transactions. If the wait of their COMMIT for a
// synchronous standby was cut, such a row is visible but may be lost in a failover. Only a COMMIT that has written
// waits for the standby, and then for all earlier WAL. The statement locks no row, so duplicates of many partitions do
// not wait for each other.
const sqlBarrier = `-- inbox: barrier
select pg_logical_emit_message(true, 'effectonce', ''::text)`

const sqlRollback = `-- inbox: roll back
rollback`

// The first start sets the floor and the strategy. Later starts only update the window. A process that something ends
// again and again is told by its starts, of which the last fifty of ten minutes stay. The guard of tables that are
// older than this program takes its COMMITs for those of effects.
const sqlRegister = `-- inbox: register the consumer
insert into {schema}inbox_consumer as c (consumer_name, floor, window_days, dedup, starts)
values ($1::text, (clock_timestamp() at time zone 'utc')::date, $2::integer, $3::text,
	jsonb_build_array(jsonb_build_object('host', $4::text, 'at', clock_timestamp())))
on conflict (consumer_name) do update set window_days = excluded.window_days, seen_at = clock_timestamp(),
	retired_at = null, starts = excluded.starts || coalesce((select jsonb_agg(s.value order by s.ordinality)
		from jsonb_array_elements(c.starts) with ordinality s
		where s.ordinality < 50 and (s.value ->> 'at')::timestamptz > clock_timestamp() - interval '10 min'), '[]')
returning dedup, (select prosrc like '%commit and no chain%' from pg_proc
	where oid = '{schema}inbox_guard()'::regprocedure)`

// Retire refuses a consumer that runs, so this is for a program that was away meanwhile.
const sqlReturn = `-- inbox: end a retirement
update {schema}inbox_consumer set retired_at = null where consumer_name = $1::text and retired_at is not null`

// All processes of a program together write at most every 10 s, also after the clock went back. The result has
// the other programs that reported within three minutes, and this one if another Inbox of this process reported it.
const sqlPresent = `-- inbox: say who runs
with mine as (
	update {schema}inbox_consumer c
	set programs = coalesce((select jsonb_object_agg(p.key, p.value) from jsonb_each(c.programs) p
			where (p.value ->> 'seen')::timestamptz > clock_timestamp() - interval '1 day'), '{}')
		|| jsonb_build_object($2::text, jsonb_build_object('host', $3::text, 'group', $4::text,
			'version', $5::text, 'process', $6::text, 'seen', clock_timestamp()))
	where c.consumer_name = $1::text and coalesce((c.programs -> $2::text ->> 'seen')::timestamptz
		not between clock_timestamp() - interval '10 s' and clock_timestamp(), true)
)
select p.key, coalesce(p.value ->> 'host', ''), (p.value ->> 'seen')::timestamptz
from {schema}inbox_consumer c, jsonb_each(c.programs) p
where c.consumer_name = $1::text and (p.key <> $2::text or p.value ->> 'host' = $3::text
		and p.value ->> 'process' <> $6::text
		and split_part(p.value ->> 'process', ' ', 1) = split_part($6::text, ' ', 1))
	and (p.value ->> 'seen')::timestamptz > clock_timestamp() - interval '3 min'`
