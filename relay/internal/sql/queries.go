// Package sql has all statements on the tables of an outbox but the append: those of relays and those of operators.
package sql

// The statements of relays and operators.
const (
	Meta = `-- relay: meta
select m.outbox_id::text || '.' || m.incarnation,
	m.system_identifier = c.system and m.timeline = c.timeline
from {schema}outbox_meta m, {schema}outbox_server() c`

	LockLanes = `-- relay: lock lanes
select lane from {schema}outbox_lane order by lane for update`

	// An incarnation is a time, in seconds since 2020, and not a count: a database that is restored twice from the same
	// backup would count to the same number twice.
	NewIncarnation = `-- relay: new incarnation
update {schema}outbox_meta m
set incarnation = greatest(m.incarnation + 1, extract(epoch
	from clock_timestamp() - timestamptz '2020-01-01 00:00:00+00')::integer),
	system_identifier = c.system, timeline = c.timeline
from {schema}outbox_server() c
returning m.outbox_id::text || '.' || m.incarnation`

	// The sequence that ids are drawn from, if it is not the one that relays read: another table's sequence had the
	// name when this one was made, or it was renamed.
	OtherSequence = `-- relay: other sequence
select case when s.name::regclass is distinct from to_regclass('{schema}outbox_event_id_seq') then coalesce(s.name,
	'none') else '' end
from pg_get_serial_sequence('{schema}outbox_event', 'id') s (name)`

	// A message in the WAL for the relay that reads it: an operator's statement has changed a table that the relay must
	// read again.
	Announce = `-- relay: announce
select pg_logical_emit_message(true, 'effectonce', '')`

	WALDrop = `-- relay: wal drop
select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1 and active_pid is null`

	HashVectors = `-- relay: hash vectors
select v.text from unnest($1::text[], $2::bigint[]) v (text, hash) where hashtextextended(v.text collate "C",
	0) <> v.hash`
)
