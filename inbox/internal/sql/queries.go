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
// With $5 effects run in this transaction: a COMMIT of theirs fails (inbox_guard). While it is open, its lock tells
// operators which partition it handles (sql.ProgressList finds it); nothing waits for that lock.
//
// Row-level security would hide rows without an error: marks of parked keys, so that events pass them. The setting
// row_security cannot be off, because it would hold for the effect's statements, too.
//
// The planner takes the generic plan for dear where it expects many rows, and would plan the statement for each event:
// that costs more than all else that Postgres does for the event. So inbox_days has a limit.
const State = `-- inbox: state
select num_nulls(
		case when $4::text <> '' and current_setting('idle_in_transaction_session_timeout') = '0'
			then set_config('idle_in_transaction_session_timeout', $4::text, true) end,
		case when $4::text <> '' then set_config('tcp_keepalives_idle', '10', true) end,
		case when $4::text <> '' then set_config('tcp_keepalives_interval', '5', true) end,
		case when $4::text <> '' then set_config('tcp_keepalives_count', '3', true) end,
		case when $1::text <> '' then set_config('lock_timeout', $1::text, true) end,
		case when $2::text <> '' then set_config('statement_timeout', $2::text, true) end,
		case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end,
		case when current_setting('array_nulls') = 'off' then set_config('array_nulls', 'on', true) end,
		case when $5::text is not null then set_config('effectonce.inbox', 'open', true) end,
		case when $5::text <> '' then pg_try_advisory_xact_lock_shared(
			hashtextextended($3::text || ' ' || $5::text, '{schema}inbox_progress'::regclass::oid::bigint)) end),
	(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint,
	floor(extract(epoch from clock_timestamp()) / 86400)::integer,
	d.dropped_before - date '1970-01-01',
	coalesce(d.believed_until - date '1970-01-01', -1),
	coalesce(c.floor - date '1970-01-01', -1),
	coalesce(c.dedup, ''),
	coalesce(c.ids_until > clock_timestamp(), false),
	concat_ws(', ',
		case when row_security_active('{schema}inbox_message'::regclass) then 'inbox_message' end,
		case when row_security_active('{schema}inbox_message_any'::regclass) then 'inbox_message_any' end,
		case when row_security_active('{schema}inbox_consumer'::regclass) then 'inbox_consumer' end,
		case when row_security_active('{schema}inbox_days'::regclass) then 'inbox_days' end,
		case when row_security_active('{schema}inbox_parked_key'::regclass) then 'inbox_parked_key' end,
		case when row_security_active('{schema}inbox_parked'::regclass) then 'inbox_parked' end,
		case when row_security_active('{schema}inbox_progress'::regclass) then 'inbox_progress' end,
		case when row_security_active('{schema}inbox_watermark'::regclass) then 'inbox_watermark' end,
		case when row_security_active('{schema}inbox_numbering'::regclass) then 'inbox_numbering' end)
from (values (true)) s left join (select dropped_before, believed_until from {schema}inbox_days limit 1) d on true
left join {schema}inbox_consumer c on c.consumer_name = $3::text`

const LockMark = `-- inbox: lock a mark
select state from {schema}inbox_parked_key where consumer_name = $1::text and key_hash = $2::bytea for update`

const Unmark = `-- inbox: unmark
delete from {schema}inbox_parked_key k where k.consumer_name = $1::text and k.key_hash = $2::bytea
	and not exists (select from {schema}inbox_parked p where p.consumer_name = k.consumer_name
		and p.key_hash = k.key_hash)`
