package inbox

// SQL on what is open: inbox_parked_key, inbox_parked and inbox_progress, as the consuming side uses it. What operators
// do stands in queries_operator.go.

// Behind the ids, in a statement of its own: what an earlier holder of an id parked is only seen by a later snapshot.
// Nearly always nothing is open, and then this is all that parking costs.
const sqlOpen = `-- inbox: open
select exists (select from {schema}inbox_parked where consumer_name = $1::text)
	or exists (select from {schema}inbox_parked_key where consumer_name = $1::text)`

// An id that is open is decided: it is neither run nor listed again.
const sqlOpenIDs = `-- inbox: open ids
select message_id from {schema}inbox_parked where consumer_name = $1::text and message_id = any($2::text::uuid[])`

// Shared, so that a releaser cannot remove a mark while an event goes behind it.
const sqlMarks = `-- inbox: marks of keys
select key_hash, at_bound from {schema}inbox_parked_key
where consumer_name = $1::text and key_hash = any($2::bytea[]) order by key_hash for share`

const sqlMark = `-- inbox: mark a key
insert into {schema}inbox_parked_key (consumer_name, key_hash, tenant, topic, key, code, reason)
values ($1::text, $2::bytea, $3::bytea, $4::text, $5::bytea, $6::text, $7::text)
on conflict (consumer_name, key_hash) do nothing`

// A list has the order of its rows' ids, which are drawn in the order of the array.
const sqlPark = `-- inbox: park
insert into {schema}inbox_parked (consumer_name, message_id, key_hash, kind, tenant, topic, type, record_partition,
	record_offset, record_millis, record_key, record_value, record_headers, code, reason, attempts)
select $1::text, message_id::uuid, key_hash, kind, tenant, topic, type, record_partition, record_offset, record_millis,
	record_key, record_value, record_headers::jsonb, code, reason, attempts
from unnest($2::text[], $3::bytea[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::integer[], $9::bigint[],
	$10::bigint[], $11::bytea[], $12::bytea[], $13::text[], $14::text[], $15::text[], $16::integer[])
	with ordinality as t (message_id, key_hash, kind, tenant, topic, type, record_partition, record_offset,
		record_millis, record_key, record_value, record_headers, code, reason, attempts, n)
order by n`

// The same for ids too old or too far ahead for a row of their own. One that is decided, or open, is not listed.
const sqlQuarantine = `-- inbox: quarantine
insert into {schema}inbox_parked (consumer_name, message_id, key_hash, kind, tenant, topic, type, record_partition,
	record_offset, record_millis, record_key, record_value, record_headers, code, reason, attempts)
select $1::text, message_id::uuid, key_hash, kind, tenant, topic, type, record_partition, record_offset, record_millis,
	record_key, record_value, record_headers::jsonb, code, reason, attempts
from unnest($2::text[], $3::bytea[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::integer[], $9::bigint[],
	$10::bigint[], $11::bytea[], $12::bytea[], $13::text[], $14::text[], $15::text[], $16::integer[])
	with ordinality as t (message_id, key_hash, kind, tenant, topic, type, record_partition, record_offset,
		record_millis, record_key, record_value, record_headers, code, reason, attempts, n)
where not exists (select from {schema}inbox_message m where m.consumer_name = $1::text
	and m.message_id = t.message_id::uuid)
	and not exists (select from {schema}inbox_message_any a where a.consumer_name = $1::text
		and a.message_id = t.message_id::uuid)
order by n
on conflict (consumer_name, message_id) do nothing
returning message_id`

// Behind it, for what another transaction decided while the statement above waited for the row that it took off the
// list.
const sqlUnquarantine = `-- inbox: take back from quarantine
delete from {schema}inbox_parked p where p.consumer_name = $1::text and p.message_id = any($2::text[]::uuid[])
	and p.kind = 'quarantined'
	and (exists (select from {schema}inbox_message m where m.consumer_name = $1::text and m.message_id = p.message_id)
		or exists (select from {schema}inbox_message_any a where a.consumer_name = $1::text
			and a.message_id = p.message_id))
returning p.message_id`

// What waits leaves no row of its own: it gets one when it runs.
const sqlForgetDay = `-- inbox: take ids back from the days
delete from {schema}inbox_message where consumer_name = $1::text and message_id = any($2::text::uuid[])`

const sqlForgetAny = `-- inbox: take ids back from any
delete from {schema}inbox_message_any where consumer_name = $1::text and message_id = any($2::text::uuid[])`

const sqlProgress = `-- inbox: progress
select from_offset, to_offset, attempts from {schema}inbox_progress
where consumer_name = $1::text and topic = $2::text and partition = $3::integer`

const sqlRange = `-- inbox: write the range
insert into {schema}inbox_progress as p (consumer_name, topic, partition, from_offset, to_offset)
select $1::text, $2::text, $3::integer, $4::bigint, $5::bigint from {schema}inbox_server() c
where $6::text = c.system || '/' || c.timeline
on conflict (consumer_name, topic, partition) do update set from_offset = excluded.from_offset,
	to_offset = excluded.to_offset,
	attempts = 0, halted_at = null, halted_code = '', halted_reason = '', trying_at = null,
	updated_at = clock_timestamp()`

// A live process leaves its range. Not that of a successor that counts in it already, or has a range of its own.
const sqlCloseRange = `-- inbox: close the range
update {schema}inbox_progress set to_offset = from_offset, updated_at = clock_timestamp()
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and attempts = 0
	and from_offset >= $4::bigint and to_offset = $5::bigint`

// In the deciding transaction. A zombie that is behind moves nothing back.
const sqlPass = `-- inbox: pass
update {schema}inbox_progress set from_offset = $4::bigint, attempts = 0, halted_at = null, halted_code = '',
	halted_reason = '',
	trying_at = null, updated_at = clock_timestamp(),
	effect_at = coalesce(clock_timestamp() - make_interval(secs => $5::float8), effect_at)
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and from_offset < $4::bigint`

// Outside of a deciding transaction. A database that has taken over may have forgotten what was decided in the other.
const sqlWriteProgress = `-- inbox: write the progress
update {schema}inbox_progress set from_offset = $4::bigint, attempts = 0, updated_at = clock_timestamp(),
	effect_at = coalesce(clock_timestamp() - make_interval(secs => $6::float8), effect_at)
	from {schema}inbox_server() c
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and from_offset < $4::bigint
	and $5::text = c.system || '/' || c.timeline`

const sqlCount = `-- inbox: count a run
update {schema}inbox_progress set attempts = case when from_offset < $4::bigint then 1
	when from_offset = $4::bigint then attempts + 1
	else attempts end, from_offset = greatest(from_offset, $4::bigint), updated_at = clock_timestamp()
where consumer_name = $1::text and topic = $2::text and partition = $3::integer
returning attempts, from_offset`

const sqlUncount = `-- inbox: take a count back
update {schema}inbox_progress set attempts = greatest(attempts - 1, 0), updated_at = clock_timestamp()
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and from_offset = $4::bigint`

const sqlHalted = `-- inbox: halted
insert into {schema}inbox_progress as p (consumer_name, topic, partition, from_offset, to_offset, halted_at,
	halted_code, halted_reason)
values ($1::text, $2::text, $3::integer, $4::bigint, $4::bigint, clock_timestamp(), $5::text, $6::text)
on conflict (consumer_name, topic, partition) do update set halted_at = clock_timestamp(),
	halted_code = excluded.halted_code,
	halted_reason = excluded.halted_reason, trying_at = null, updated_at = clock_timestamp()`

const sqlResumed = `-- inbox: resumed
select halted_at is null from {schema}inbox_progress where consumer_name = $1::text and topic = $2::text
	and partition = $3::integer`

// Nothing has moved: updated_at stays.
const sqlTrying = `-- inbox: note what is tried again
update {schema}inbox_progress set trying_at = coalesce(trying_at, clock_timestamp()), trying_reason = $4::text
where consumer_name = $1::text and topic = $2::text and partition = $3::integer`

const sqlTryNow = `-- inbox: look whether to try now
select trying_at is null from {schema}inbox_progress where consumer_name = $1::text and topic = $2::text
	and partition = $3::integer`

// Releasing. A list is locked by its mark, an event alone by its row. Who looked remembers what is counted of the event
// that is next: a higher count, under the lock, is another process's run. What another worker has the effect of is left
// out: the oldest of a worker that is down would fill the list.
const sqlReleasing = `-- inbox: releasing
(select id, null::bytea, topic, id, release_attempts, waiting_at is not null from {schema}inbox_parked
	where consumer_name = $1::text and state = 'releasing' and ($3::text[] is null or topic = any($3::text[]))
	order by id limit $2::integer)
union all
(select 0, k.key_hash, k.topic, coalesce(h.id, 0), coalesce(h.release_attempts, 0), h.waiting_at is not null
	from {schema}inbox_parked_key k left join lateral (select p.id, p.release_attempts, p.waiting_at
		from {schema}inbox_parked p
		where p.consumer_name = k.consumer_name and p.key_hash = k.key_hash order by p.id limit 1) h on true
	where k.consumer_name = $1::text and k.state = 'releasing' and ($3::text[] is null or k.topic = any($3::text[]))
	order by k.since limit $2::integer)`

// Who puts an event behind a mark holds it as well, FOR SHARE: that is waited for.
const sqlFreeMark = `-- inbox: look whether a mark is free
select from {schema}inbox_parked_key where consumer_name = $1::text and key_hash = $2::bytea for key share skip locked`

const sqlFreeAlone = `-- inbox: look whether an event alone is free
select from {schema}inbox_parked where consumer_name = $1::text and id = $2::bigint
	and key_hash is null for key share skip locked`

const sqlLockAlone = `-- inbox: lock an event alone
select state from {schema}inbox_parked where consumer_name = $1::text and id = $2::bigint and key_hash is null
	for update`

// What the next transaction of a release runs. A count of runs that is not zero is of an event that has run alone in
// this release, or that ended a batch of which nothing is known: up to it they run one at a time.
const sqlList = `-- inbox: look at a list
select id, release_attempts, code,
	coalesce(octet_length(record_key), 0) + coalesce(octet_length(record_value), 0) + octet_length(record_headers::text)
from {schema}inbox_parked where consumer_name = $1::text and key_hash = $2::bytea order by id limit $3::integer`

// The row leaves the list with its batch. When the batch does not end, the note stays.
const sqlNoteBatch = `-- inbox: note a batch of a release
update {schema}inbox_parked set release_attempts = -1 where consumer_name = $1::text and id = $2::bigint`

// The head of a list, and what stands behind it, or the event alone with that id.
const sqlHead = `-- inbox: head
select id, message_id::text, topic, record_partition, record_offset, record_millis, record_key, record_value,
	record_headers::text, kind, release_attempts, code
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

// Counted here and not by those who append: two that share a mark and both count in it deadlock.
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
