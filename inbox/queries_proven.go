package inbox

// What an operator has skipped was not decided, nor what was before it in an account that began there; an account that
// lacks offsets proves nothing.
const sqlProven = `-- inbox: what the progress proves
select greatest(p.began_offset, coalesce((select max((a.detail ->> 'to')::bigint) from {schema}inbox_audit a
	where a.consumer_name = p.consumer_name and a.action = 'skip records' and a.topic = p.topic
		and a.detail ->> 'partition' = p.partition::text), 0)), p.from_offset
from {schema}inbox_progress p where p.consumer_name = $1::text and p.topic = $2::text and p.partition = $3::integer
	and p.topic_id = $4::text::uuid and p.accounted = p.from_offset - p.began_offset`

// A skip is of the log that was there, as this consumer had begun it: what is made again, or is cut, has other records.
const sqlSkipped = `-- inbox: what operators have skipped
select (a.detail ->> 'from')::bigint, (a.detail ->> 'to')::bigint
from {schema}inbox_progress p join {schema}inbox_audit a on a.consumer_name = p.consumer_name and a.topic = p.topic
where p.consumer_name = $1::text and p.topic = $2::text and p.partition = $3::integer and a.action = 'skip records'
	and a.detail ->> 'partition' = p.partition::text and a.detail ->> 'log' = p.topic_id::text
	and (a.detail ->> 'began_at')::timestamptz = p.began_at
order by a.id`
