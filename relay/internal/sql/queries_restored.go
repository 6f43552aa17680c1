package sql

// Events from the WAL are numbered by the position of their commit (walLane): none is beyond the WAL's end. No event is
// published after the end of the last lease.
const Numbering = `-- relay: numbering
with last as (
	select extract(epoch from clock_timestamp())::float8 as now, extract(epoch from greatest(
		(select max(lease_until) from {schema}outbox_lane), (select max(lease_until) from {schema}relay_member)
	))::float8 as leased
)
select l.lane, l.reserved_seq, m.outbox_id::text, m.incarnation, last.leased, last.now
from {schema}outbox_lane l, {schema}outbox_meta m, last
union all
select -1, (coalesce(pg_current_wal_insert_lsn() - w.base, 0) / 32 + 1)::bigint * 1048576, m.outbox_id::text,
	m.incarnation, last.leased, last.now
from last, {schema}outbox_meta m left join {schema}outbox_wal w on w.one`

const Pinned = `-- relay: pinned
select topic from {schema}outbox_topic order by topic`

// The topics of the first rows of each lane that were never published to.
const Unpinned = `-- relay: unpinned
select distinct e.topic from {schema}outbox_lane l cross join lateral (
	select e.topic from {schema}outbox_event e where e.lane = l.lane order by e.id limit 100) e
where not exists (select from {schema}outbox_topic t where t.topic = e.topic) order by 1`

const FirstUse = `-- relay: first use
select m.outbox_id::text, m.incarnation, exists (select from {schema}outbox_topic t where t.topic = $1)
from {schema}outbox_meta m`
