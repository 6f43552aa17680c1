package inbox

// SQL of consumers that go by numbers.

const sqlMarksOf = `-- inbox: marks of a partition
select outbox_id::text, incarnation, version, lanes, seqs, latest from {schema}inbox_watermark
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and version > 0
order by outbox_id, incarnation, version`

// The earliest incarnation of each outbox that any partition of the topic has met.
const sqlFirstMet = `-- inbox: first numberings met
select outbox_id::text, min(incarnation) from {schema}inbox_watermark where consumer_name = $1::text and topic = $2::text group by outbox_id`

const sqlAccepted = `-- inbox: accepted numberings
select outbox_id::text, max(incarnation) from {schema}inbox_numbering where consumer_name = $1::text group by outbox_id`

// Whoever began with the same version waits here, and then finds it gone. A row is replaced and not updated: under a
// snapshot that is kept open the versions of a row would be read by every look at it, and by every check of its index.
const sqlMoveMark = `-- inbox: move a mark
with base as (
	delete from {schema}inbox_watermark where consumer_name = $1::text and topic = $2::text and partition = $3::integer
		and outbox_id = $4::text::uuid and incarnation = $5::integer and version = $6::bigint - 1
	returning version
)
insert into {schema}inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs, latest)
select $1::text, $2::text, $3::integer, $4::text::uuid, $5::integer, $6::bigint, $7::smallint[], $8::bigint[], $9::bigint from base`

// The first one. Version 0 stays, so that nobody takes a mark for new whose version 1 is gone already.
const sqlFirstMark = `-- inbox: first mark
with met as (
	insert into {schema}inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs, latest)
	values ($1::text, $2::text, $3::integer, $4::text::uuid, $5::integer, 0, '{}', '{}', 0)
	on conflict do nothing returning version
)
insert into {schema}inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs, latest)
select $1::text, $2::text, $3::integer, $4::text::uuid, $5::integer, $6::bigint, $7::smallint[], $8::bigint[], $9::bigint from met`

// After a consumer was moved from ids: what they knew.
const sqlKnownIDs = `-- inbox: known ids
select message_id from {schema}inbox_message where consumer_name = $1::text and message_id = any($2::text::uuid[])
union all
select message_id from {schema}inbox_message_any where consumer_name = $1::text and message_id = any($2::text::uuid[])`

const sqlAccept = `-- inbox: accept a numbering
insert into {schema}inbox_numbering (consumer_name, outbox_id, incarnation)
select $1::text, $2::text::uuid, $3::integer where exists (select from {schema}inbox_consumer where consumer_name = $1::text and dedup = 'watermark')
on conflict (consumer_name, outbox_id, incarnation) do update set accepted_at = clock_timestamp()`

// Their workers ask, and go on. One that halted for another numbering halts again.
const sqlAcceptResumes = `-- inbox: resume what waited for a numbering
update {schema}inbox_progress set attempts = 0, halted_at = null, halted_code = '', halted_reason = '', updated_at = clock_timestamp()
where consumer_name = $1::text and halted_code = $2::text and ($3::text = '' or topic = $3::text)`

// Every transaction that decides has read this table: the lock waits for their ends, and none can begin until the
// commit.
const sqlLockConsumers = `-- inbox: lock the consumers
lock table {schema}inbox_consumer in access exclusive mode`

const sqlMoveConsumer = `-- inbox: move a consumer from ids
update {schema}inbox_consumer set dedup = $2::text, ids_until = clock_timestamp() + make_interval(days => window_days + 1)
where consumer_name = $1::text and dedup = 'id'
returning ids_until`

const sqlForgetOffsets = `-- inbox: forget the offsets of a topic
delete from {schema}inbox_watermark
where consumer_name = $1::text and topic = $2::text and outbox_id = '00000000-0000-0000-0000-000000000000'
	and exists (select from {schema}inbox_consumer where consumer_name = $1::text and dedup = 'offset')`
