package inbox

// SQL for consumers that go by numbers.

const sqlWatermarks = `-- inbox: marks of a partition
select outbox_id::text, incarnation, version, lanes, seqs, latest from {schema}inbox_watermark
where consumer_name = $1::text and topic = $2::text and partition = $3::integer and version > 0
order by outbox_id, incarnation, version`

// The earliest incarnation of each outbox that any partition of the topic has had.
const sqlFirstMet = `-- inbox: first numberings met
select outbox_id::text, min(incarnation) from {schema}inbox_watermark where consumer_name = $1::text
	and topic = $2::text group by outbox_id`

const sqlAccepted = `-- inbox: accepted numberings
select outbox_id::text, max(incarnation) from {schema}inbox_numbering where consumer_name = $1::text group by outbox_id`

// A transaction that began with the same version waits here, and then finds the row gone. The row is replaced, not
// updated: while an old snapshot is open, every read of an updated row and every check of its index would visit all its
// versions.
const sqlAdvanceWatermark = `-- inbox: move a mark
with base as (
	delete from {schema}inbox_watermark where consumer_name = $1::text and topic = $2::text and partition = $3::integer
		and outbox_id = $4::text::uuid and incarnation = $5::integer and version = $6::bigint - 1
	returning version
)
insert into {schema}inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs,
	latest)
select $1::text, $2::text, $3::integer, $4::text::uuid, $5::integer, $6::bigint, $7::smallint[], $8::bigint[],
	$9::bigint from base`

// Version 0 stays, so that no transaction takes a mark for new whose version 1 is already replaced.
const sqlFirstWatermark = `-- inbox: first mark
with met as (
	insert into {schema}inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs,
		latest)
	values ($1::text, $2::text, $3::integer, $4::text::uuid, $5::integer, 0, '{}', '{}', 0)
	on conflict (consumer_name, topic, partition, outbox_id, incarnation, version) do nothing returning version
)
insert into {schema}inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs,
	latest)
select $1::text, $2::text, $3::integer, $4::text::uuid, $5::integer, $6::bigint, $7::smallint[], $8::bigint[],
	$9::bigint from met`

// Ids that are recorded, and what their events said. One by one: each is in one day. Without "offset 0" a day that was
// not analyzed yet would be read whole.
const sqlKnownIDs = `-- inbox: known ids
select m.message_id, m.content from unnest($2::text::uuid[]) as t (id) cross join lateral (
	select message_id, content from {schema}inbox_message where consumer_name = $1::text and message_id = t.id
	offset 0) m
union all
select m.message_id, m.content from unnest($2::text::uuid[]) as t (id) cross join lateral (
	select message_id, content from {schema}inbox_message_any where consumer_name = $1::text and message_id = t.id
	offset 0) m`
