package sql

const (
	Scheduled = `-- relay: scheduled
select seq, due, message_id, tenant, topic, key, type, created_at, coalesce(octet_length(payload), -1)
from {schema}outbox_scheduled
where ($1::text = '' or topic = $1) and ($2::text is null or key = $2) and ($3::text is null or tenant = $3)
	and ($4::uuid is null or message_id = $4) and ($5::timestamptz is null or due <= $5)
order by due, seq limit $6`

	// An event that a move has taken meanwhile is not there any more.
	Cancel = `-- relay: cancel
delete from {schema}outbox_scheduled where seq = $1 returning message_id, tenant, topic, key, type, due`

	StatusScheduled = `-- relay: status scheduled
select count(*), count(*) filter (where due <= clock_timestamp()), min(due) from {schema}outbox_scheduled`
)
