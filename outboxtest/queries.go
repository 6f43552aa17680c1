package outboxtest

// The visible rows whose transaction is in progress: this transaction, or a savepoint of it, which has its own, higher
// transaction id. xmin has 32 bits; its distance to the transaction's id gives the upper 32. A transaction without an
// id has written nothing.
const queryAppended = `-- outboxtest: appended
select e.lane, coalesce(e.message_id::text, ''), e.source, e.tenant, e.topic, e.key, e.type, e.content_type,
	e.headers::text,
	e.payload, coalesce(e.event_time, e.created_at), e.due
from (
	select 1 as later, lane, id as n, message_id, source, tenant, topic, key, type, content_type, headers, payload,
		event_time, created_at, null::timestamptz as due, xmin
	from {schema}outbox_event
	union all
	select 2, lane, seq, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time,
		created_at, due, xmin
	from {schema}outbox_scheduled
) e
cross join (select pg_current_xact_id_if_assigned()::text::bigint as xid) as own
cross join lateral (select (e.xmin::text::bigint - own.xid % 4294967296 + 6442450944) % 4294967296 - 2147483648 as
	above) as d
where ($1::text = '' or e.topic = $1::text)
	and case when d.above >= 0 then pg_xact_status((own.xid + d.above)::text::xid8) = 'in progress' end
order by e.later, e.n`
