package sql

const (
	ReplayPlan = `-- relay: replay plan
select count(*), count(distinct a.message_id), coalesce(sum(octet_length(a.payload)), 0),
	count(distinct (a.tenant, a.key)),
	min(a.published_at), max(a.published_at)
from {schema}outbox_archive a
where a.published_at >= $1 and a.published_at < $2 and a.topic = $3 and ($4::text is null or a.key = $4)
	and ($5::text is null or a.tenant = $5) and ($6::text = '' or a.type = $6) and a.pos > $7`

	ReplayHead = `-- relay: replay head
select a.pos, a.published_at, a.message_id, a.tenant, a.key, a.type, coalesce(octet_length(a.payload), -1)
from {schema}outbox_archive a
where a.published_at >= $1 and a.published_at < $2 and a.topic = $3 and ($4::text is null or a.key = $4)
	and ($5::text is null or a.tenant = $5) and ($6::text = '' or a.type = $6) and a.pos > $7
order by a.pos limit $8`

	// New ids, the same message ids and times: the event enters the outbox like any other, after the existing ones.
	// The header tells consumers in watermark mode that this is a repetition (event.HeaderReplay).
	Replay = `-- relay: replay
with chosen as materialized (
	select a.* from {schema}outbox_archive a
	where a.published_at >= $1 and a.published_at < $2 and a.topic = $3 and ($4::text is null or a.key = $4)
		and ($5::text is null or a.tenant = $5) and ($6::text = '' or a.type = $6) and a.pos > $7
	order by a.pos limit $8
), again as (
	insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload,
		event_time)
	select message_id, source, tenant, topic, key, type, content_type,
		coalesce(headers, '{}') || '{"effectonce_replay": "true"}', payload,
		coalesce(event_time, created_at)
	from chosen order by pos
)
select count(*), coalesce(max(pos), 0) from chosen`

	ReplayEnd = `-- relay: replay end
select least($1::timestamptz, clock_timestamp())`

	// {query} is an operator's select, checked to be one statement, and {after} a number: neither can be a parameter.
	ReplayCount = `-- relay: replay count
select count(*), count(distinct q.message_id), coalesce(sum(octet_length(q.payload)), 0),
	count(distinct (q.topic, q.key))
from (select * from (
{query}
) q offset {after}) q`

	ReplayRows = `-- relay: replay rows
select * from (
{query}
) q offset {after} limit $1`

	// With hold: the COMMIT runs the query to its end, and the session keeps its rows.
	ReplayDeclare = `-- relay: replay declare
declare effectonce_rows no scroll cursor with hold for select * from (
{query}
) q offset {after}`

	// A small number, so that they fit into memory, however large they are.
	ReplayFetch = `-- relay: replay fetch
fetch forward 20 from effectonce_rows`

	ReplayRoom = `-- relay: replay room
select count(*) < $1 from (select from {schema}outbox_event limit $1) e`
)
