package relay

// The statements about events that producers emit into the WAL (docs/decisions/0026). Who may emit is said by outbox_streamed.emitted.
const (
	// From the states that it may come from, under the locks of the lanes.
	sqlEmitted = `-- relay: emitted
update {schema}outbox_streamed s set emitted = $4
from unnest($1::smallint[], $2::bigint[]) f (lane, fence), {schema}outbox_lane l
where s.lane = f.lane and l.lane = f.lane and l.fence = f.fence and l.owner = $3 and s.emitted = any ($5::text[])
returning s.lane`

	// Nothing that is written from here on is before it.
	sqlEmittedUntil = `-- relay: emitted until
select (pg_current_wal_insert_lsn() - '0/0')::bigint`

	// What was emitted becomes the row that it would have been, with the id that it drew then: nobody publishes the lane meanwhile,
	// and a relay that begins to publish it has no floor. A second time, after a crash, it finds it there.
	sqlPutDown = `-- relay: put down
insert into {schema}outbox_event (id, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
overriding system value
select e.id, e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers, e.payload, e.event_time
from unnest($1::smallint[], $2::bigint[], $4::bigint[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
	$12::jsonb[], $13::bytea[], $14::timestamptz[]) as e (lane, fence, id, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
join {schema}outbox_lane l on l.lane = e.lane and l.fence = e.fence and l.owner = $3
order by e.id
on conflict (lane, id) do nothing`

	// What was emitted for a lane that is published from the table by now: at its end, as if it had been inserted late.
	sqlPutLast = `-- relay: put last
insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
select e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers, e.payload, e.event_time
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::jsonb[], $9::bytea[], $10::timestamptz[])
	with ordinality as e (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time, n)
order by e.n`

	// Lanes of which the WAL has, or may get, events that are nowhere else: not for the table until they are read, while the slot is there.
	sqlEmittedUnread = `-- relay: emitted unread
select array(select s.lane from {schema}outbox_streamed s
	where s.emitted <> 'none' and exists (select from {schema}outbox_wal w join pg_replication_slots r on r.slot_name = w.slot
		where r.database = current_database() and r.wal_status is distinct from 'lost'))`

	sqlEmittedGiveUp = `-- relay: emitted give up
update {schema}outbox_streamed set emitted = 'none' where emitted <> 'none'`
)
