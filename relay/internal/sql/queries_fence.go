package sql

const (
	LockTimeout = `-- relay: lock timeout
select set_config('lock_timeout', $1, true)`

	// Ids that the outbox still knows, wherever they stand. The journal counts too: a new event under a journalled id
	// would be taken for the one that had it.
	KnownIDs = `-- relay: known ids
select greatest(
	coalesce((select max(h.id) from {schema}outbox_lane l
		cross join lateral (select e.id from {schema}outbox_event e where e.lane = l.lane order by e.id desc
			limit 1) h), 0),
	coalesce((select max(h.id) from {schema}outbox_lane l
		cross join lateral (select e.id from {schema}outbox_held e where e.lane = l.lane order by e.id desc limit 1) h),
			0),
	coalesce((select max(h.id) from {schema}outbox_lane l
		cross join lateral (select e.id from {schema}outbox_parked e where e.lane = l.lane order by e.id desc
			limit 1) h), 0),
	coalesce((select max(i) from {schema}outbox_claim c cross join lateral unnest(c.ids) i), 0))`

	LastID = `-- relay: last id
select case when is_called then last_value else last_value - 1 end from {schema}outbox_event_id_seq`

	// Nobody draws an id meanwhile: an insert holds a lock that conflicts with this one.
	LockEvents = `-- relay: lock events
lock table {schema}outbox_event in share row exclusive mode`

	Forward = `-- relay: forward
select setval('{schema}outbox_event_id_seq'::regclass, $1)`

	// A dump without data, or a truncate of all tables, leaves an outbox without lanes and numbering.
	MakeLanes = `-- relay: make lanes
insert into {schema}outbox_lane (lane) select generate_series(0, 31) on conflict do nothing`

	MakeMeta = `-- relay: make meta
insert into {schema}outbox_meta (system_identifier, timeline) select system, timeline from {schema}outbox_server()
on conflict do nothing`

	Fence = `-- relay: fence
update {schema}outbox_lane set fence = fence + 1, owner = null, lease_until = '-infinity'`

	Epoch = `-- relay: epoch
select outbox_id::text || '.' || incarnation from {schema}outbox_meta for update`

	Waiting = `-- relay: waiting
select (select count(*) from {schema}outbox_event), (select coalesce(sum(cardinality(ids)), 0)
	from {schema}outbox_claim)::bigint`
)
