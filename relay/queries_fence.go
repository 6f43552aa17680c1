package relay

import "github.com/effectonce/effectonce/internal/pgschema"

const (
	sqlImpatient = `-- relay: impatient
select set_config('lock_timeout', $1, true)`

	sqlLockLanes = `-- relay: lock lanes
select lane from {schema}outbox_lane order by lane for update`

	// Ids that the outbox still knows, wherever they stand. The journal counts too: a new event under a journalled id would
	// be taken for the one that had it.
	sqlKnownIDs = `-- relay: known ids
select greatest(
	coalesce((select max(h.id) from {schema}outbox_lane l
		cross join lateral (select e.id from {schema}outbox_event e where e.lane = l.lane order by e.id desc limit 1) h), 0),
	coalesce((select max(h.id) from {schema}outbox_lane l
		cross join lateral (select e.id from {schema}outbox_held e where e.lane = l.lane order by e.id desc limit 1) h), 0),
	coalesce((select max(h.id) from {schema}outbox_lane l
		cross join lateral (select e.id from {schema}outbox_parked e where e.lane = l.lane order by e.id desc limit 1) h), 0),
	coalesce((select max(i) from {schema}outbox_claim c cross join lateral unnest(c.ids) i), 0))`

	sqlLastID = `-- relay: last id
select case when is_called then last_value else last_value - 1 end from {schema}outbox_event_id_seq`

	// Nobody draws an id meanwhile: an insert holds a lock that conflicts with this one.
	sqlLockEvents = `-- relay: lock events
lock table {schema}outbox_event in share row exclusive mode`

	sqlForward = `-- relay: forward
select setval('{schema}outbox_event_id_seq'::regclass, $1)`

	sqlFence = `-- relay: fence
update {schema}outbox_lane set fence = fence + 1, owner = null, lease_until = '-infinity'`

	// An incarnation is a time, in seconds since 2020, and not a count: a database that is restored twice from the same
	// backup would count to the same number twice.
	sqlNewIncarnation = `-- relay: new incarnation
update {schema}outbox_meta m
set incarnation = greatest(m.incarnation + 1, extract(epoch from clock_timestamp() - timestamptz '2020-01-01 00:00:00+00')::integer),
	system_identifier = c.system_identifier, timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
from pg_control_system() c
returning m.outbox_id::text || '.' || m.incarnation`

	sqlEpoch = `-- relay: epoch
select outbox_id::text || '.' || incarnation from {schema}outbox_meta for update`

	sqlWaiting = `-- relay: waiting
select (select count(*) from {schema}outbox_event), (select coalesce(sum(cardinality(ids)), 0) from {schema}outbox_claim)::bigint`
)

// fenceQueries are the statements of Operator.Fence with their schema.
type fenceQueries struct {
	impatient, lockLanes, knownIDs, lastID, lockEvents, forward, fence, newIncarnation, epoch, waiting string
}

func newFenceQueries(prefix string) fenceQueries {
	q := func(sql string) string { return pgschema.Expand(sql, prefix) }
	return fenceQueries{
		impatient: q(sqlImpatient), lockLanes: q(sqlLockLanes), knownIDs: q(sqlKnownIDs), lastID: q(sqlLastID), lockEvents: q(sqlLockEvents),
		forward: q(sqlForward), fence: q(sqlFence), newIncarnation: q(sqlNewIncarnation), epoch: q(sqlEpoch), waiting: q(sqlWaiting),
	}
}
