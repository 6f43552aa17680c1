package sql

// Statements of operators. An empty consumer matches all.

// An operator's process that hangs between two round trips must not keep a worker waiting for its locks.
const Timeouts = `-- inbox: timeouts
select set_config('lock_timeout', $1::text, true), set_config('idle_in_transaction_session_timeout', $1::text, true)`

const Parked = `-- inbox: parked
select p.id, p.consumer_name, p.message_id::text, p.tenant, p.topic, coalesce(p.record_key, ''), p.type, p.kind,
	p.key_hash is null,
	coalesce(k.state, p.state) = 'releasing', p.record_partition, p.record_offset, p.record_millis, p.attempts,
	p.reason, p.code,
	p.parked_at, coalesce(octet_length(p.record_value), -1), p.record_headers::text,
	case when $11::boolean then p.record_value end, p.key_hash
from {schema}inbox_parked p
left join {schema}inbox_parked_key k on k.consumer_name = p.consumer_name and k.key_hash = p.key_hash
where ($1::text = '' or p.consumer_name = $1::text)
	and ($2::bigint = 0 or p.id = $2::bigint)
	and ($3::text = '' or p.message_id = nullif($3::text, '')::uuid)
	and ($4::bytea is null or p.tenant = $4::bytea)
	and ($5::text = '' or p.topic = $5::text)
	and ($6::bytea is null or p.record_key = $6::bytea)
	and ($7::text = '' or p.code = $7::text)
	and ($8::text = '' or p.kind = $8::text)
	and p.parked_at <= clock_timestamp() - make_interval(secs => $9::float8)
	and p.id > $10::bigint
order by p.id limit $12::integer`

const BlockedKeys = `-- inbox: blocked keys
select k.consumer_name, k.tenant, k.topic, k.key, k.state = 'releasing', k.at_bound, k.since, k.reason, k.code,
	(select count(*) from {schema}inbox_parked p where p.consumer_name = k.consumer_name and p.key_hash = k.key_hash),
	coalesce(h.parked_at, k.since), coalesce(h.id, 0), h.message_id
from {schema}inbox_parked_key k left join lateral (select p.id, p.message_id, p.parked_at from {schema}inbox_parked p
	where p.consumer_name = k.consumer_name and p.key_hash = k.key_hash order by p.id limit 1) h on true
where ($1::text = '' or k.consumer_name = $1::text)
	and ($2::bytea is null or k.tenant = $2::bytea)
	and ($3::text = '' or k.topic = $3::text)
	and ($4::bytea is null or k.key = $4::bytea)
	and ($5::text = '' or k.code = $5::text)
	and k.since <= clock_timestamp() - make_interval(secs => $6::float8)
order by k.since, k.consumer_name, k.key_hash limit $7::integer`

// A parked key is listed by the first event of its list.
const Failures = `-- inbox: failures
select u.consumer_name, u.tenant, u.topic, u.key, u.alone, u.id, u.type, u.kind, u.code, u.reason, u.at,
	case when $9::boolean and not u.alone then (select count(*) from {schema}inbox_parked w
		where w.consumer_name = u.consumer_name and w.key_hash = u.key_hash) else 0 end
from (
	select k.consumer_name, k.key_hash, k.tenant, k.topic, k.key, false as alone, coalesce(h.id, 0) as id,
		coalesce(h.type, '') as type, coalesce(h.kind, 'behind') as kind, k.code, k.reason, k.since as at
	from {schema}inbox_parked_key k left join lateral (select p.id, p.type, p.kind from {schema}inbox_parked p
		where p.consumer_name = k.consumer_name and p.key_hash = k.key_hash order by p.id limit 1) h on true
	where k.state = 'parked'
	union all
	select p.consumer_name, null, p.tenant, p.topic, coalesce(p.record_key, ''), true, p.id, p.type, p.kind, p.code,
		p.reason, p.parked_at
	from {schema}inbox_parked p where p.key_hash is null and p.state = 'parked') u
where ($1::text = '' or u.consumer_name = $1::text)
	and ($2::bytea is null or u.tenant = $2::bytea)
	and ($3::text = '' or u.topic = $3::text)
	and ($4::text is null or u.type = $4::text)
	and ($5::text is null or u.code = $5::text)
	and ($6::text[] = '{}' or u.kind = any ($6::text[]))
	and ($7::timestamptz is null or u.at >= $7::timestamptz)
	and ($8::timestamptz is null or u.at <= $8::timestamptz)
order by u.at, u.id limit $10::bigint`

// Callers lock the mark before the row, in the order of a releaser.
const LockListed = `-- inbox: lock a parked event
select id from {schema}inbox_parked where id = $1::bigint for update`

const ReleaseKey = `-- inbox: release a key
update {schema}inbox_parked_key set state = 'releasing', since = clock_timestamp()
where consumer_name = $1::text and key_hash = $2::bytea and state = 'parked'`

// Clears the code of the first event, which an operator has checked. A later event with the code stops the release
// again.
const Judged = `-- inbox: judged
update {schema}inbox_parked set code = '' where code = $3::text
	and id = (select min(id) from {schema}inbox_parked where consumer_name = $1::text and key_hash = $2::bytea)`

const ResetReleases = `-- inbox: count the releases of a key anew
update {schema}inbox_parked set release_attempts = 0
where consumer_name = $1::text and key_hash = $2::bytea and release_attempts <> 0`

const KeyList = `-- inbox: list of a key
select coalesce(min(id), 0), count(*) from {schema}inbox_parked
where consumer_name = $1::text and key_hash = $2::bytea`

const ListIDs = `-- inbox: ids of a list
select id, message_id::text, code from {schema}inbox_parked where consumer_name = $1::text and key_hash = $2::bytea
	order by id`

const ReleaseEvent = `-- inbox: release an event
update {schema}inbox_parked set state = 'releasing', release_attempts = 0 where id = $1::bigint and key_hash is null`

const Edit = `-- inbox: edit
update {schema}inbox_parked set record_value = case when $2::boolean then $3::bytea else record_value end,
	record_headers = case when $4::text = '' then record_headers else nullif($4::text, '')::jsonb end
where id = $1::bigint`

// A repeat of a discarded id is a duplicate.
const DiscardDay = `-- inbox: discard into the days
insert into {schema}inbox_message (consumer_name, message_id, status, error_code, content)
select $1::text, t.id::uuid, 'discarded', t.code, coalesce(p.content, 0)
from unnest($2::text[], $3::text[]) as t (id, code)
left join {schema}inbox_parked p on p.consumer_name = $1::text and p.message_id = t.id::uuid
order by t.id::uuid
on conflict (consumer_name, message_id) do nothing`

const DiscardAny = `-- inbox: discard into any
insert into {schema}inbox_message_any (consumer_name, message_id, status, error_code, content)
select $1::text, t.id::uuid, 'discarded', t.code, coalesce(p.content, 0)
from unnest($2::text[], $3::text[]) as t (id, code)
left join {schema}inbox_parked p on p.consumer_name = $1::text and p.message_id = t.id::uuid
order by t.id::uuid
on conflict (consumer_name, message_id) do nothing`

const LeaveAll = `-- inbox: leave the lists
delete from {schema}inbox_parked where id = any($1::bigint[])`

// The original record is kept if it is changed or discarded.
const AuditRecords = `-- inbox: audit records
insert into {schema}inbox_audit (operator, action, reason, consumer_name, message_id, tenant, topic, key, detail,
	record_value, record_headers)
select $1::text, $2::text, $3::text, consumer_name, message_id, tenant, topic, record_key, $4::text::jsonb,
	case when $6::boolean then record_value end, case when $6::boolean then record_headers end
from {schema}inbox_parked where id = any($5::bigint[]) order by id`

const Audit = `-- inbox: audit
insert into {schema}inbox_audit (operator, action, reason, consumer_name, tenant, topic, key, detail)
values ($1::text, $2::text, $3::text, $4::text, $5::bytea, $6::text, $7::bytea, $8::text::jsonb)`

const MayChange = `-- inbox: may change
select current_setting('transaction_read_only') = 'off' and has_table_privilege('{schema}inbox_audit', 'insert')`

const AuditLog = `-- inbox: audit log
select at, operator, action, reason, consumer_name, message_id, coalesce(tenant, ''), coalesce(topic, ''),
	coalesce(key, ''), detail
from {schema}inbox_audit where $1::text = '' or consumer_name = $1::text order by id desc limit $2::integer`

// Acknowledged is about the last actions: an older acknowledgement is forgotten, and its finding is seen again.
const Acknowledged = `-- inbox: acknowledged
select * from (
	select distinct on (1, 2) detail ->> 'check', detail ->> 'found', operator, reason,
		(detail ->> 'until')::timestamptz as until
	from (select * from {schema}inbox_audit order by id desc limit 10000) a where action = $1::text
	order by 1, 2, id desc
) a where until > clock_timestamp()`

// updated_at stays, for it says that a worker has run.
const Resume = `-- inbox: resume
update {schema}inbox_progress set attempts = 0, halted_at = null, halted_code = '', halted_reason = '',
	trying_at = null
where consumer_name = $1::text and topic = $2::text and partition = $3::integer
	and (halted_at is not null or attempts > 0 or trying_at is not null)`

// TryReleased ends the waits of released events.
const TryReleased = `-- inbox: try released events now
update {schema}inbox_parked set waiting_at = null
where consumer_name = $1::text and topic = $2::text and record_partition = $3::integer and waiting_at is not null`

// The consumer's progress advances at least every ten seconds while it decides events.
const LockConsumer = `-- inbox: lock a consumer
select retired_at is not null, exists (select from {schema}inbox_progress p
	where p.consumer_name = c.consumer_name and p.updated_at > clock_timestamp() - interval '1 minute')
	or exists (select from jsonb_each(c.programs) p
		where (p.value ->> 'seen')::timestamptz > clock_timestamp() - interval '2 minutes')
from {schema}inbox_consumer c where c.consumer_name = $1::text for update`

const Retire = `-- inbox: retire a consumer
update {schema}inbox_consumer set retired_at = clock_timestamp() where consumer_name = $1::text`

// Forwards only: everything before the progress is decided. updated_at stays, for it says that a worker has run.
const SkipTo = `-- inbox: skip to an offset
update {schema}inbox_progress n set from_offset = $4::bigint, to_offset = $4::bigint,
	accounted = n.accounted + $4::bigint - n.from_offset, attempts = 0, halted_at = null,
	halted_code = '', halted_reason = '', trying_at = null
from {schema}inbox_progress p
where n.consumer_name = $1::text and n.topic = $2::text and n.partition = $3::integer and n.from_offset < $4::bigint
	and p.consumer_name = n.consumer_name and p.topic = n.topic and p.partition = n.partition
returning p.from_offset, coalesce(p.topic_id::text, ''), p.began_at`

const SkipFrom = `-- inbox: where a skip would begin
select from_offset from {schema}inbox_progress
where consumer_name = $1::text and topic = $2::text and partition = $3::integer`

// The group of the programs that ran the consumer within the last day, if it is one.
const LastGroup = `-- inbox: the group of a consumer
select coalesce(min(p.value ->> 'group'), '') from {schema}inbox_consumer c, jsonb_each(c.programs) p
where c.consumer_name = $1::text having count(distinct p.value ->> 'group') = 1`

const ConsumerList = `-- inbox: list the consumers
select consumer_name, floor::timestamptz at time zone 'utc', window_days, started_at, seen_at, dedup, ids_until,
	retired_at,
	(select coalesce(jsonb_agg(p.value || jsonb_build_object('name', p.key) order by p.key), '[]')
		from jsonb_each(c.programs) p where (p.value ->> 'seen')::timestamptz > clock_timestamp() - interval '3 min'),
	(select max((p.value ->> 'seen')::timestamptz) from jsonb_each(c.programs) p), coalesce(s.n, 0),
	coalesce(s.host, ''),
	coalesce((select min(o.consumer_name) from {schema}inbox_consumer o where o.consumer_name <> c.consumer_name
		and o.retired_at is null and o.programs ?| array(select jsonb_object_keys(c.programs))
		and exists (select from {schema}inbox_progress p where p.consumer_name = o.consumer_name
			and coalesce(p.began_at < c.started_at, true)
			and greatest(p.from_offset, p.to_offset) > coalesce(p.began_offset, -1))
		and not exists (select from {schema}inbox_progress p where p.consumer_name = c.consumer_name)), '')
from {schema}inbox_consumer c left join lateral (select count(*) as n, s.value ->> 'host' as host
	from jsonb_array_elements(c.starts) s where (s.value ->> 'at')::timestamptz > clock_timestamp() - interval '5 min'
	group by 2 order by 1 desc, 2 limit 1) s on true
where $1::text = '' or consumer_name = $1::text order by consumer_name`

// A transaction that handles a partition holds a lock of its own (inbox: state), which every role may see; since when
// it is open, and whose it is, only some may. The time of a loss is one word: who acknowledges one does not acknowledge
// the next.
const ProgressList = `-- inbox: list the progress
with batch as (
	select (l.classid::bigint << 32) | l.objid::bigint as key, min(a.xact_start) as since,
		min(concat_ws(' ', nullif(a.application_name, ''), 'on ' || host(a.client_addr),
			case when a.state like 'idle in transaction%' then 'outside of Postgres' || coalesce(', holding up pid '
				|| (select string_agg(w.pid::text, ', ' order by w.pid) from pg_stat_activity w
					where w.wait_event_type = 'Lock' and a.pid = any(pg_blocking_pids(w.pid))), '')
			when a.wait_event_type = 'Lock' then 'waiting for a lock of pid '
				|| array_to_string(pg_blocking_pids(a.pid), ', ') end)) as by
	from pg_locks l left join pg_stat_activity a on a.pid = l.pid
	where l.locktype = 'advisory' and l.objsubid = 1 and l.mode = 'ShareLock'
		and l.database = (select d.oid from pg_database d where d.datname = current_database())
	group by 1
)
select p.consumer_name, p.topic, p.partition, p.from_offset, p.to_offset, p.attempts, p.halted_at, p.halted_code,
	p.halted_reason, p.trying_at, case when p.trying_at is null then '' else p.trying_reason end, p.effect_at,
	coalesce(p.from_offset - p.began_offset - p.accounted, 0),
	case when p.began_at > clock_timestamp() - interval '7 days'
		then coalesce(to_char(p.began_at at time zone 'utc', 'YYYYMMDD"T"HH24MISS"Z"') || ': '
			|| substring(p.began_reason from '^records are lost: (.*)$'), '') else '' end,
	extract(epoch from clock_timestamp() - p.updated_at)::float8,
	case when b.key is not null then coalesce(extract(epoch from clock_timestamp() - b.since), -1) end::float8,
	coalesce(b.by, '')
from {schema}inbox_progress p left join batch b on b.key = hashtextextended(p.consumer_name || ' ' || p.topic || '/'
	|| p.partition, '{schema}inbox_progress'::regclass::oid::bigint)
where $1::text = '' or p.consumer_name = $1::text order by p.consumer_name, p.topic, p.partition`

const Accept = `-- inbox: accept a numbering
insert into {schema}inbox_numbering (consumer_name, outbox_id, incarnation)
select $1::text, $2::text::uuid, $3::integer where exists (select from {schema}inbox_consumer
	where consumer_name = $1::text and dedup = 'watermark')
	and exists (select from {schema}inbox_progress where consumer_name = $1::text and halted_code = $4::text
		and halted_reason ~ ('[[:<:]]' || $2::text || '[.]' || $3::integer || '[[:>:]]'))
on conflict (consumer_name, outbox_id, incarnation) do update set accepted_at = clock_timestamp()`

// The workers poll for it and resume. A partition that halted for another numbering halts again.
const AcceptResumes = `-- inbox: resume what waited for a numbering
update {schema}inbox_progress set attempts = 0, halted_at = null, halted_code = '', halted_reason = ''
where consumer_name = $1::text and halted_code = $2::text and ($3::text = '' or topic = $3::text)`

// Every deciding transaction reads this table: the lock waits for those that run, and none can begin until the commit.
const LockConsumers = `-- inbox: lock the consumers
lock table {schema}inbox_consumer in access exclusive mode`

const MoveConsumer = `-- inbox: move a consumer from ids
update {schema}inbox_consumer set dedup = $2::text,
	ids_until = clock_timestamp() + make_interval(days => window_days + 1)
where consumer_name = $1::text and dedup = 'id'
returning ids_until`

const ForgetOffsets = `-- inbox: forget the offsets of a topic
delete from {schema}inbox_watermark
where consumer_name = $1::text and topic = $2::text and outbox_id = '00000000-0000-0000-0000-000000000000'
	and exists (select from {schema}inbox_consumer where consumer_name = $1::text and dedup = 'offset')
	and set_config('effectonce.inbox', 'forget', true) = 'forget'`
