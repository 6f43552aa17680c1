package sql

// The statements that set the WAL feed up. Those with {publication} are DDL, which takes no parameters.
const (
	Publication = `-- relay: publication
select n.name, exists (select from pg_publication p where p.pubname = n.name),
	exists (select from pg_publication p where p.pubname = n.name and pg_has_role(p.pubowner, 'usage'))
from (select 'effectonce_' || replace(m.outbox_id::text, '-', '') as name from {schema}outbox_meta m) n`

	// Inserts only: a relay's deletes must not come back to it. Scheduled events are published so that relays know when
	// they are due.
	Publish = `-- relay: publish
create publication {publication} for table {schema}outbox_event, {schema}outbox_scheduled with (publish = 'insert')`

	PublishTables = `-- relay: publish tables
alter publication {publication} set table {schema}outbox_event, {schema}outbox_scheduled`

	PublishInserts = `-- relay: publish inserts
alter publication {publication} set (publish = 'insert')`

	Unpublish = `-- relay: unpublish
drop publication {publication}`

	WALSlot = `-- relay: wal slot
select count(*) > 0, coalesce(bool_or(active), false) from pg_replication_slots where slot_name = $1`

	// Events that came from the WAL may have been published: a new numbering begins.
	WALGiveUp = `-- relay: wal give up
with gone as (
	delete from {schema}outbox_streamed s returning s.lane
)
update {schema}outbox_meta m
set incarnation = greatest(m.incarnation + 1, extract(epoch
	from clock_timestamp() - timestamptz '2020-01-01 00:00:00+00')::integer),
	system_identifier = c.system, timeline = c.timeline
from {schema}outbox_server() c
where exists (select from gone)`

	// The base stays: numbers of the next slot continue from it, in the same incarnation.
	WALForget = `-- relay: wal forget
update {schema}outbox_wal set slot = '', owner = null`
)
