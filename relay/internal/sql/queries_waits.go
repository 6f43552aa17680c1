package sql

// Repeated questions to an outbox.
const (
	// Which server, database and tables it is. A restart of the server and a restore change it, and so does a rewrite
	// of outbox_lane.
	Identity = `-- relay: identity
select concat_ws(' ', extract(epoch from pg_postmaster_start_time()), current_database(),
	'{schema}outbox_event_id_seq'::regclass::oid, pg_relation_filenode('{schema}outbox_lane'::regclass))`

	// Fails, with a division by zero, if it is another outbox than the one that was checked.
	SameOutbox = `-- relay: same outbox
select 1 / ($1 = concat_ws(' ', extract(epoch from pg_postmaster_start_time()), current_database(),
	'{schema}outbox_event_id_seq'::regclass::oid, pg_relation_filenode('{schema}outbox_lane'::regclass)))::integer`

	Drawn = `-- relay: drawn
select case when n.is_called then n.last_value else 0 end from {schema}outbox_event_id_seq n`

	// Without waiting for locks: the caller has other outboxes to ask. The plan is pinned as the probe's.
	WaitsSettings = `-- relay: waits settings
select set_config('lock_timeout', '200ms', true), set_config('statement_timeout', '2s', true),
	set_config('plan_cache_mode', 'force_generic_plan', true), set_config('row_security', 'off', true),
	set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off',
	true)`

	// By lane, and with an order and a limit, for the reasons of the probe.
	Waits = `-- relay: waits
select exists (select from generate_series(0, 31) f (lane)
		where exists (select from (
				select from {schema}outbox_event e where e.lane = f.lane order by e.id limit 1) one)
			or exists (select from (
				select from {schema}outbox_held h where h.lane = f.lane order by h.id limit 1) one)
			or exists (select from (
				select from {schema}outbox_parked p where p.lane = f.lane order by p.id limit 1) one)
			or exists (select from (select from {schema}outbox_scheduled s where s.lane = f.lane
				and s.due <= statement_timestamp() order by s.due limit 1) one))
		or exists (select from {schema}outbox_paused_topic),
	case when n.is_called then n.last_value else 0 end
from {schema}outbox_event_id_seq n`
)
