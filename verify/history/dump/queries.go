package dump

// These run in one snapshot. {schema} is the prefix of pgschema; the run's own tables are in the search_path.
const (
	sqlBegin = `-- dump: begin
begin isolation level repeatable read read only`

	sqlNow = `-- dump: now
select clock_timestamp()`

	sqlBusiness = `-- dump: business
select message_id, tenant, topic, key, version, business, scheduled, poison, skipped, digest from history_business
	order by ord`

	sqlEffects = `-- dump: effects
select consumer, message_id, version, business, record_partition, record_offset from history_effect order by ord`

	sqlLedger = `-- dump: ledger
select consumer, business, message_id from history_ledger`

	sqlRows = `-- dump: rows
select 'outbox_event', lane, id, message_id, false, false, false, '' from {schema}outbox_event
union all select 'outbox_scheduled', lane, seq, message_id, false, false, false, '' from {schema}outbox_scheduled
	where message_id is not null
union all select 'outbox_held', lane, id, message_id, false, false, sent, '' from {schema}outbox_held
union all select 'outbox_parked', lane, id, message_id, attempts > 0, releasing, maybe_published, code
	from {schema}outbox_parked
union all select 'outbox_archive', lane, id, message_id, false, false, false, '' from {schema}outbox_archive`

	sqlKeys = `-- dump: parked keys
select tenant, topic, key, state = 'releasing',
	(select count(*) from {schema}outbox_parked p where p.key_hash = k.key_hash and not p.alone)
from {schema}outbox_parked_key k`

	sqlClaims = `-- dump: claims
select lane, first_seq, cardinality(ids) from {schema}outbox_claim`

	sqlLanes = `-- dump: lanes
select l.lane, l.owner is not null, l.fence,
	l.owner is not null and greatest(l.lease_until, m.lease_until) < clock_timestamp()
from {schema}outbox_lane l left join {schema}relay_member m on m.owner = l.owner order by l.lane`

	sqlDiscards = `-- dump: discards
select action, message_id, coalesce(tenant, ''), coalesce(topic, ''), coalesce(detail->>'key', ''),
	coalesce((detail->>'events')::bigint, 1), coalesce(detail->>'may_appear', '') not in ('', 'false', '0'),
	message_id is null and detail->>'key' is null
from {schema}outbox_audit where action = any ($1::text[]) order by id`

	sqlMended = `-- dump: mended
select message_id from {schema}outbox_audit where action = any ($1::text[]) and message_id is not null
union select message_id from {schema}inbox_audit where action = any ($1::text[])
	and message_id is not null`

	sqlConsumers = `-- dump: consumers
select consumer_name, window_days, dedup <> 'id' from {schema}inbox_consumer`

	sqlInbox = `-- dump: inbox
select consumer_name, message_id, status, false from {schema}inbox_message
union all select consumer_name, message_id, status, true from {schema}inbox_message_any`

	sqlInboxParked = `-- dump: inbox parked
select consumer_name, message_id, kind, code, key_hash is null, state = 'releasing' from {schema}inbox_parked
	order by id`

	sqlInboxKeys = `-- dump: inbox keys
select consumer_name, topic, encode(key, 'escape'), state = 'releasing',
	(select count(*) from {schema}inbox_parked p where p.consumer_name = k.consumer_name and p.key_hash = k.key_hash)
from {schema}inbox_parked_key k`

	sqlHalted = `-- dump: halted
select consumer_name, topic, partition, from_offset, halted_reason from {schema}inbox_progress
	where halted_at is not null`

	sqlDroppedBefore = `-- dump: dropped before
select dropped_before from {schema}inbox_days`

	// For a consumer by number effects count as decided. It is one statement with one snapshot, so that it does not
	// miss an event that a release moves from parked to decided. Each table is joined once: within another condition
	// the effects, which have no index by id, would be read once for each id.
	sqlUndecided = `-- dump: undecided
select t.id from unnest($2::text[]::uuid[]) as t (id)
where not exists (select from {schema}inbox_message m where m.consumer_name = $1 and m.message_id = t.id)
	and not exists (select from {schema}inbox_message_any a where a.consumer_name = $1 and a.message_id = t.id)
	and not exists (select from {schema}inbox_parked p where p.consumer_name = $1 and p.message_id = t.id)
	and not exists (select from history_effect f where f.consumer = $1 and f.message_id = t.id
		and exists (select from {schema}inbox_consumer c where c.consumer_name = $1 and c.dedup <> 'id'))`
)
