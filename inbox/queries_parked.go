package inbox

// SQL of the consuming side on inbox_parked_key, inbox_parked and inbox_progress. The statements of operators are in
// internal/sql/queries_operator.go. Bytes are read as hex: bytea_output changes what they are in the query modes that
// poolers need, and to set it would change what effects read.

// After the insert of the ids, in a statement of its own: only a later snapshot sees what an earlier holder of an id
// parked. Usually nothing is parked, and this check is the whole cost of parking.
const sqlOpen = `-- inbox: open
select exists (select from {schema}inbox_parked where consumer_name = $1::text)
	or exists (select from {schema}inbox_parked_key where consumer_name = $1::text)`

// A parked id is decided: its event is neither run nor parked again. Without "offset 0" a list that was not analyzed
// yet would be read whole.
const sqlOpenIDs = `-- inbox: open ids
select p.message_id, p.content from unnest($2::text::uuid[]) as t (id) cross join lateral (
	select message_id, content from {schema}inbox_parked where consumer_name = $1::text and message_id = t.id
	offset 0) p`

// FOR SHARE, so that a releaser cannot remove a mark while an event is added behind it.
const sqlMarks = `-- inbox: marks of keys
select encode(key_hash, 'hex'), at_bound from {schema}inbox_parked_key
where consumer_name = $1::text and key_hash = any($2::bytea[]) order by key_hash for share`

const sqlMark = `-- inbox: mark a key
insert into {schema}inbox_parked_key (consumer_name, key_hash, tenant, topic, key, code, reason)
values ($1::text, $2::bytea, $3::bytea, $4::text, $5::bytea, $6::text, $7::text)
on conflict (consumer_name, key_hash) do nothing`

// A list is ordered by its rows' ids, which are drawn in the order of the array.
const sqlPark = `-- inbox: park
insert into {schema}inbox_parked (consumer_name, message_id, key_hash, kind, tenant, topic, type, record_partition,
	record_offset, record_millis, record_key, record_value, record_headers, code, reason, attempts, content)
select $1::text, message_id::uuid, key_hash, kind, tenant, topic, type, record_partition, record_offset, record_millis,
	record_key, record_value, record_headers::jsonb, code, reason, attempts, content
from unnest($2::text[], $3::bytea[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::integer[], $9::bigint[],
	$10::bigint[], $11::bytea[], $12::bytea[], $13::text[], $14::text[], $15::text[], $16::integer[], $17::bigint[])
	with ordinality as t (message_id, key_hash, kind, tenant, topic, type, record_partition, record_offset,
		record_millis, record_key, record_value, record_headers, code, reason, attempts, content, n)
order by n`

// The same for undecidable events. An event that is decided or parked is not quarantined.
const sqlQuarantine = `-- inbox: quarantine
insert into {schema}inbox_parked (consumer_name, message_id, key_hash, kind, tenant, topic, type, record_partition,
	record_offset, record_millis, record_key, record_value, record_headers, code, reason, attempts, content)
select $1::text, message_id::uuid, key_hash, kind, tenant, topic, type, record_partition, record_offset, record_millis,
	record_key, record_value, record_headers::jsonb, code, reason, attempts, content
from unnest($2::text[], $3::bytea[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::integer[], $9::bigint[],
	$10::bigint[], $11::bytea[], $12::bytea[], $13::text[], $14::text[], $15::text[], $16::integer[], $17::bigint[])
	with ordinality as t (message_id, key_hash, kind, tenant, topic, type, record_partition, record_offset,
		record_millis, record_key, record_value, record_headers, code, reason, attempts, content, n)
where not exists (select from {schema}inbox_message m where m.consumer_name = $1::text
	and m.message_id = t.message_id::uuid)
	and not exists (select from {schema}inbox_message_any a where a.consumer_name = $1::text
		and a.message_id = t.message_id::uuid)
order by n
on conflict (consumer_name, message_id) do nothing
returning message_id`

// After the quarantine, for events that another transaction decided while the insert waited for a row that this
// transaction removed from the list.
const sqlUnquarantine = `-- inbox: take back from quarantine
delete from {schema}inbox_parked p
where p.consumer_name = $1::text and p.message_id = any(array(select unnest($2::text[])::uuid))
	and p.kind = 'quarantined'
	and (exists (select from {schema}inbox_message m where m.consumer_name = $1::text and m.message_id = p.message_id)
		or exists (select from {schema}inbox_message_any a where a.consumer_name = $1::text
			and a.message_id = p.message_id))
returning p.message_id`

// A waiting event has no id row; it gets one when it runs. The subquery makes the array once, not for each row that the
// plan looks at.
const sqlForgetDay = `-- inbox: take ids back from the days
delete from {schema}inbox_message
where consumer_name = $1::text and message_id = any(array(select unnest($2::text::uuid[])))`

const sqlForgetAny = `-- inbox: take ids back from any
delete from {schema}inbox_message_any
where consumer_name = $1::text and message_id = any(array(select unnest($2::text::uuid[])))`

const sqlProgress = `-- inbox: progress
select from_offset, to_offset, attempts, topic_id::text, coalesce(began_offset, from_offset), seen_partitions,
	began_offset is not null, accounted
from {schema}inbox_progress where consumer_name = $1::text and topic = $2::text and partition = $3::integer`

// What other partitions of a topic tell of it; without any, which other consumer of the program has read it. One that
// has decided nothing leaves nothing to apply again, and those of a first deployment are new together.
const sqlSeen = `-- inbox: see a topic
select coalesce(min(seen_partitions) filter (where seen_partitions > 0), 0), max(topic_id::text),
	case when count(*) > 0 then '' else coalesce((select min(o.consumer_name) from {schema}inbox_consumer o
		where o.consumer_name <> $1::text and o.retired_at is null and o.programs ? $3::text
			and exists (select from {schema}inbox_progress p where p.consumer_name = o.consumer_name
				and p.topic = $2::text and greatest(p.from_offset, p.to_offset) > coalesce(p.began_offset, -1)
				and coalesce(p.began_at < (select c.started_at from {schema}inbox_consumer c
					where c.consumer_name = $1::text), true))), '') end
from {schema}inbox_progress where consumer_name = $1::text and topic = $2::text`

// Only in the database that was asked for the progress. The offsets of another log are no marks of this one: their
// deletion is announced to inbox_kept.
const sqlBeginPartition = `-- inbox: begin a partition
with began as (
	insert into {schema}inbox_progress as p (consumer_name, topic, partition, from_offset, to_offset, topic_id,
		began_offset, began_at, began_reason, seen_partitions, accounted)
	select $1::text, $2::text, $3::integer, greatest($4::bigint, $6::bigint), greatest($4::bigint, $6::bigint),
		$5::text::uuid, $6::bigint, clock_timestamp(), $7::text, $8::integer, greatest($4::bigint - $6::bigint, 0)
	from {schema}inbox_server() c where $9::text = c.system || '/' || c.timeline
	on conflict (consumer_name, topic, partition) do update set
		from_offset = case when $4::bigint < 0 then p.from_offset else $4::bigint end,
		to_offset = case when $4::bigint < 0 then p.to_offset else $4::bigint end,
		attempts = case when $4::bigint < 0 then p.attempts else 0 end,
		accounted = case when $4::bigint < 0 then p.accounted + coalesce(p.began_offset, p.from_offset) - $6::bigint
			else $4::bigint - $6::bigint end,
		topic_id = excluded.topic_id, began_offset = excluded.began_offset, began_at = excluded.began_at,
		began_reason = excluded.began_reason, seen_partitions = excluded.seen_partitions,
		updated_at = clock_timestamp()
	returning p.from_offset, set_config('effectonce.inbox', 'forget', true)
), forgotten as (
	delete from {schema}inbox_watermark m using {schema}inbox_progress p
	where m.consumer_name = $1::text and m.topic = $2::text and m.partition = $3::integer
		and m.outbox_id = '00000000-0000-0000-0000-000000000000' and p.consumer_name = m.consumer_name
		and p.topic = m.topic and p.partition = m.partition and p.topic_id <> $5::text::uuid
		and exists (select from began)
), lowered as (
	delete from {schema}inbox_watermark m using {schema}inbox_progress p
	where m.consumer_name = $1::text and m.topic = $2::text and m.partition = $3::integer
		and m.outbox_id = '00000000-0000-0000-0000-000000000000' and p.consumer_name = m.consumer_name
		and p.topic = m.topic and p.partition = m.partition and p.topic_id is not distinct from $5::text::uuid
		and $10::boolean and m.seqs[1] > $4::bigint and exists (select from began)
	returning m.incarnation, m.version, m.lanes, m.latest
), lower as (
	insert into {schema}inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs,
		latest)
	select $1::text, $2::text, $3::integer, '00000000-0000-0000-0000-000000000000', incarnation, version + 1, lanes,
		array[$4::bigint], latest from lowered
)
select from_offset from began`

// Like the statements below, it writes nothing if the row is not, or no longer, where this process left it ($9; -1: it
// knows of none).
const sqlRange = `-- inbox: write the range
insert into {schema}inbox_progress as p (consumer_name, topic, partition, from_offset, to_offset, topic_id, accounted)
select $1::text, $2::text, $3::integer, $4::bigint, $5::bigint, $7::text::uuid, $8::bigint from {schema}inbox_server() c
where $6::text = c.system || '/' || c.timeline and ($9::bigint < 0 or exists (select from {schema}inbox_progress
	where consumer_name = $1::text and topic = $2::text and partition = $3::integer))
on conflict (consumer_name, topic, partition) do update set from_offset = excluded.from_offset,
	to_offset = excluded.to_offset, accounted = excluded.accounted,
	attempts = 0, halted_at = null, halted_code = '', halted_reason = '',
	trying_at = case when p.from_offset = excluded.from_offset then p.trying_at end,
	updated_at = case when p.from_offset = excluded.from_offset then p.updated_at else clock_timestamp() end
where p.topic_id is not distinct from $7::text::uuid and p.from_offset >= $9::bigint`

// A live process closes its range, but not the range of a successor or one in which a successor already counts.
const sqlCloseRange = `-- inbox: close the range
update {schema}inbox_progress set to_offset = from_offset
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and attempts = 0
	and from_offset >= $4::bigint and to_offset = $5::bigint`

// In the deciding transaction. A zombie that lags does not advance the progress back, and one that reads an earlier
// log does not move it at all.
const sqlPass = `-- inbox: pass
update {schema}inbox_progress set from_offset = $4::bigint, accounted = $7::bigint, attempts = 0, halted_at = null,
	halted_code = '', halted_reason = '',
	trying_at = null, updated_at = clock_timestamp(),
	effect_at = coalesce(clock_timestamp() - make_interval(secs => $5::float8), effect_at)
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and from_offset < $4::bigint
	and from_offset >= $8::bigint and topic_id is not distinct from $6::text::uuid`

// Outside of a deciding transaction. Only in the database in which the events were decided: one that took over may lack
// them.
const sqlWriteProgress = `-- inbox: write the progress
update {schema}inbox_progress set from_offset = $4::bigint, accounted = $8::bigint, attempts = 0,
	updated_at = clock_timestamp(),
	effect_at = coalesce(clock_timestamp() - make_interval(secs => $6::float8), effect_at)
	from {schema}inbox_server() c
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and from_offset < $4::bigint
	and from_offset >= $9::bigint and $5::text = c.system || '/' || c.timeline
	and topic_id is not distinct from $7::text::uuid`

// Only in the database in which the partition began: it advances the progress to the offset.
const sqlCount = `-- inbox: count a run
update {schema}inbox_progress set attempts = case when from_offset < $4::bigint then 1
	when from_offset = $4::bigint then attempts + 1
	else attempts end, from_offset = greatest(from_offset, $4::bigint),
	accounted = case when from_offset < $4::bigint then $7::bigint else accounted end, updated_at = clock_timestamp()
from {schema}inbox_server() c
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and from_offset >= $8::bigint
	and $5::text = c.system || '/' || c.timeline and topic_id is not distinct from $6::text::uuid
returning attempts, from_offset`

const sqlUncount = `-- inbox: take a count back
update {schema}inbox_progress set attempts = greatest(attempts - 1, 0), updated_at = clock_timestamp()
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and from_offset = $4::bigint`

// While the database rejects a part of a batch, another may wait for its next attempt. Without trying_at that one runs,
// as if an operator had asked for it. A row that the database has lost is not made: it would say that all before the
// event is decided.
const sqlHalted = `-- inbox: halted
insert into {schema}inbox_progress as p (consumer_name, topic, partition, from_offset, to_offset, halted_at,
	halted_code, halted_reason)
select $1::text, $2::text, $3::integer, $4::bigint, $4::bigint, clock_timestamp(), $5::text, $6::text
from {schema}inbox_server() c where $7::text = c.system || '/' || c.timeline and ($8::bigint < 0
	or exists (select from {schema}inbox_progress
		where consumer_name = $1::text and topic = $2::text and partition = $3::integer))
on conflict (consumer_name, topic, partition) do update set halted_at = clock_timestamp(),
	halted_code = excluded.halted_code,
	halted_reason = excluded.halted_reason, updated_at = clock_timestamp(),
	trying_at = case when excluded.halted_code = 'rejected' then p.trying_at end
where p.from_offset >= $8::bigint`

const sqlResumed = `-- inbox: resumed
select p.halted_at is null, c.system || '/' || c.timeline, p.from_offset, p.topic_id::text
from {schema}inbox_server() c left join {schema}inbox_progress p
	on p.consumer_name = $1::text and p.topic = $2::text and p.partition = $3::integer`

// The progress does not advance, so updated_at stays.
const sqlTrying = `-- inbox: note what is tried again
update {schema}inbox_progress set trying_at = coalesce(trying_at, clock_timestamp()), trying_reason = $4::text
where consumer_name = $1::text and topic = $2::text and partition = $3::integer`

const sqlTried = `-- inbox: note that nothing is tried again
update {schema}inbox_progress set trying_at = null
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and trying_at is not null`

const sqlTryNow = `-- inbox: look whether to try now
select trying_at is null from {schema}inbox_progress where consumer_name = $1::text and topic = $2::text
	and partition = $3::integer`

// A list is locked by its mark, a single event by its row. The reader remembers the count of the next event: a higher
// count under the lock means that another process runs it. Topics whose effect only other workers have are excluded:
// the oldest releases of a worker that is down would fill the result.
const sqlReleasing = `-- inbox: releasing
(select id, null::text, topic, id, release_attempts, waiting_at is not null from {schema}inbox_parked
	where consumer_name = $1::text and state = 'releasing' and ($3::text[] is null or topic = any($3::text[]))
	order by id limit $2::integer)
union all
(select 0, encode(k.key_hash, 'hex'), k.topic, coalesce(h.id, 0), coalesce(h.release_attempts, 0),
	h.waiting_at is not null
	from {schema}inbox_parked_key k left join lateral (select p.id, p.release_attempts, p.waiting_at
		from {schema}inbox_parked p
		where p.consumer_name = k.consumer_name and p.key_hash = k.key_hash order by p.id limit 1) h on true
	where k.consumer_name = $1::text and k.state = 'releasing' and ($3::text[] is null or k.topic = any($3::text[]))
	order by k.since limit $2::integer)`

// FOR KEY SHARE does not conflict with the FOR SHARE of a transaction that adds an event to the list; the release waits
// for that transaction later.
const sqlFreeMark = `-- inbox: look whether a mark is free
select from {schema}inbox_parked_key where consumer_name = $1::text and key_hash = $2::bytea for key share skip locked`

const sqlFreeAlone = `-- inbox: look whether an event alone is free
select from {schema}inbox_parked where consumer_name = $1::text and id = $2::bigint
	and key_hash is null for key share skip locked`

const sqlLockAlone = `-- inbox: lock an event alone
select state from {schema}inbox_parked where consumer_name = $1::text and id = $2::bigint and key_hash is null
	for update`

// The events for the next transaction of a release. A count other than zero belongs to an event that has run alone in
// this release, or that was the last of a batch without a known end: events up to it run one at a time.
const sqlList = `-- inbox: look at a list
select id, release_attempts, code,
	coalesce(octet_length(record_key), 0) + coalesce(octet_length(record_value), 0) + octet_length(record_headers::text)
from {schema}inbox_parked where consumer_name = $1::text and key_hash = $2::bytea order by id limit $3::integer`

// The row is deleted with its batch. If the batch does not end, this value stays.
const sqlNoteBatch = `-- inbox: note a batch of a release
update {schema}inbox_parked set release_attempts = -1 where consumer_name = $1::text and id = $2::bigint`

// The first events of a list, or the single event with that id.
const sqlHead = `-- inbox: head
select id, message_id::text, topic, record_partition, record_offset, record_millis, encode(record_key, 'hex'),
	encode(record_value, 'hex'), record_headers::text, kind, release_attempts, code, content
from {schema}inbox_parked
where consumer_name = $1::text and ($2::bytea is not null and key_hash = $2::bytea or $2::bytea is null
	and id = $3::bigint)
order by id limit $4::integer`

const sqlCountRelease = `-- inbox: count a release
update {schema}inbox_parked set release_attempts = greatest(release_attempts, 0) + 1 where consumer_name = $1::text
	and id = $2::bigint`

const sqlUncountRelease = `-- inbox: take the count of a release back
update {schema}inbox_parked set release_attempts = greatest(release_attempts - 1, 0),
	waiting_at = case when $3::boolean then clock_timestamp() else waiting_at end
where consumer_name = $1::text and id = $2::bigint`

const sqlLeave = `-- inbox: leave the list
delete from {schema}inbox_parked where consumer_name = $1::text and id = any($2::bigint[])`

const sqlParkAgain = `-- inbox: park a key again
update {schema}inbox_parked_key set state = 'parked', code = $3::text, reason = $4::text, since = clock_timestamp()
where consumer_name = $1::text and key_hash = $2::bytea and state = 'releasing'`

const sqlFailedAgain = `-- inbox: note a failed release
update {schema}inbox_parked set state = 'parked', kind = case kind when 'behind' then 'failed' else kind end,
	attempts = attempts + $5::integer, release_attempts = 0, waiting_at = null, code = $3::text, reason = $4::text
where consumer_name = $1::text and id = $2::bigint`

// Counted here and not by the transactions that append: two that share a mark and both update it would deadlock.
const sqlBound = `-- inbox: bound the lists
update {schema}inbox_parked_key k set at_bound = c.n >= $2::bigint
from (select m.key_hash, (select count(*) from {schema}inbox_parked p where p.consumer_name = m.consumer_name
	and p.key_hash = m.key_hash) as n
	from {schema}inbox_parked_key m where m.consumer_name = $1::text) c
where k.consumer_name = $1::text and k.key_hash = c.key_hash and k.at_bound <> (c.n >= $2::bigint)
returning k.at_bound`

const sqlUnhalt = `-- inbox: resume what halted at a bound
update {schema}inbox_progress set halted_at = null, halted_code = '', halted_reason = '', updated_at = clock_timestamp()
where consumer_name = $1::text and halted_code = $2::text
	and ($3::boolean or not exists (select from {schema}inbox_parked_key where consumer_name = $1::text and at_bound))`
