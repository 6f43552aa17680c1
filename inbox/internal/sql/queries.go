// Package sql has the statements of an inbox's operators, and those that workers share with them.
package sql

// Statements of workers and operators.

// The first statement of every writing transaction. Without a synchronous commit, an offset could be committed in Kafka
// for an effect that a crash of the database undoes. Days are counted from 1970-01-01, UTC, in any session time zone.
//
// A host that dies within the transaction must not keep its rows locked: after 10 s of silence the server probes the
// connection, and drops it 15 s later. If a pooler answers the probes, the session ends when it has been idle for too
// long.
//
// Without array_nulls a tombstone that is parked would be the text NULL, in the query modes that poolers need.
//
// Row-level security would hide rows without an error: marks of parked keys, so that events pass them. The setting
// row_security cannot be off, because it would hold for the effect's statements, too.
const State = `-- inbox: state
select set_config('idle_in_transaction_session_timeout', case when $4::text <> '' and s.idle = '0' then $4::text
	else s.idle end, true),
	set_config('tcp_keepalives_idle', case $4::text when '' then current_setting('tcp_keepalives_idle') else '10' end,
		true),
	set_config('tcp_keepalives_interval', case $4::text when '' then current_setting('tcp_keepalives_interval')
		else '5' end, true),
	set_config('tcp_keepalives_count', case $4::text when '' then current_setting('tcp_keepalives_count') else '3' end,
		true),
	set_config('lock_timeout', coalesce(nullif($1::text, ''), current_setting('lock_timeout')), true),
	set_config('statement_timeout', coalesce(nullif($2::text, ''), current_setting('statement_timeout')), true),
	set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true),
	set_config('array_nulls', 'on', true),
	floor(extract(epoch from clock_timestamp()) / 86400)::integer,
	d.dropped_before - date '1970-01-01',
	coalesce(d.believed_until - date '1970-01-01', -1),
	coalesce(c.floor - date '1970-01-01', -1),
	coalesce(c.dedup, ''),
	coalesce(c.ids_until > clock_timestamp(), false),
	s.hidden
from (select current_setting('idle_in_transaction_session_timeout') as idle, (select string_agg(t::text, ', ')
	from unnest(array['{schema}inbox_message', '{schema}inbox_message_any', '{schema}inbox_consumer',
		'{schema}inbox_days', '{schema}inbox_parked_key', '{schema}inbox_parked', '{schema}inbox_progress',
		'{schema}inbox_watermark', '{schema}inbox_numbering']::regclass[]) t where row_security_active(t)) as hidden) s
left join {schema}inbox_days d on true
left join {schema}inbox_consumer c on c.consumer_name = $3::text`

const LockMark = `-- inbox: lock a mark
select state from {schema}inbox_parked_key where consumer_name = $1::text and key_hash = $2::bytea for update`

const Unmark = `-- inbox: unmark
delete from {schema}inbox_parked_key k where k.consumer_name = $1::text and k.key_hash = $2::bytea
	and not exists (select from {schema}inbox_parked p where p.consumer_name = k.consumer_name
		and p.key_hash = k.key_hash)`
