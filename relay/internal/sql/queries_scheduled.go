package sql

const (
	// now() and not clock_timestamp(), which the planner would not use with an index.
	Due = `-- relay: due
select f.lane from unnest($1::smallint[]) f (lane)
where exists (select from (select from {schema}outbox_scheduled s where s.lane = f.lane
	and s.due <= statement_timestamp() order by s.due limit 1) one)`

	// Under the lanes' locks, in the order that the events are to have: their new ids are drawn above the sort. Count
	// and bytes limit the events of each lane, at least one: a move that exceeds the lease would start over for ever.
	// Fails, with a division by zero, if a trigger of outbox_event took some away: they would be nowhere.
	//
	// Rows are found by their key, and not by ctid: they have no lock, and may change meanwhile. The array keeps the
	// planner from reading the whole table in the order of its key, for a join by it, if a vacuum found it empty.
	MoveDue = `-- relay: move due
with head as materialized (
	select p.lane, p.due, p.seq
	from unnest($1::smallint[], $2::bigint[]) f (lane, fence)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	cross join lateral (
		select r.*, sum(r.size) over (order by r.due, r.seq rows unbounded preceding) as bytes
		from (
			select d.lane, d.due, d.seq, coalesce(octet_length(d.payload),
				0) + octet_length(d.key) + octet_length(d.tenant)
				+ octet_length(d.source) + octet_length(d.type) + octet_length(d.content_type) + case
				when pg_column_compression(d.headers) is null then coalesce(pg_column_size(d.headers), 0)
				else octet_length(d.headers::text) end + $6 as size
			from {schema}outbox_scheduled d
			where d.lane = l.lane and d.due <= statement_timestamp()
			order by d.due, d.seq
			limit $4
		) r
	) p
	where p.bytes <= $5 or p.bytes = p.size
), due as (
	delete from {schema}outbox_scheduled s using head h
	where s.lane = any (array[h.lane]) and s.due = h.due and s.seq = h.seq
	returning s.*
), moved as (
	insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload,
		event_time)
	select coalesce(d.message_id, encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
			placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
			52, 1), 53, 1), 'hex')::uuid),
		d.source, d.tenant, d.topic, d.key, d.type, d.content_type, d.headers, d.payload, coalesce(d.event_time,
			d.created_at)
	from due d
	order by d.lane, d.due, d.seq
	returning true
)
select lane, count(*) / ((select count(*) from moved) = (select count(*) from due))::integer from due group by lane`

	// Each lane is read in the order of its key. A key's events are in one lane, and those without one in any.
	Scheduled = `-- relay: scheduled
with l as materialized (select n::smallint as lane from generate_series(0, 31) n
	where coalesce($2::text, '') = '' or n = hashtextextended($2::text collate "C", 0) & 31)
select s.seq, s.due, s.message_id, s.tenant, s.topic, s.key, s.type, s.created_at, coalesce(octet_length(s.payload), -1)
from l cross join lateral (
	select * from {schema}outbox_scheduled o where o.lane = l.lane
		and ($1::text = '' or o.topic = $1) and ($2::text is null or o.key = $2) and ($3::text is null or o.tenant = $3)
		and ($4::uuid is null or o.message_id = $4) and ($5::timestamptz is null or o.due <= $5)
	order by o.due, o.seq limit $6) s
order by s.due, s.seq limit $6`

	// An event that a move has taken meanwhile is gone. With its due time the table's key finds it: a step in a lane.
	// It needs the rights of a relay's role, select and delete; a lock of its row (for update) would need update, too.
	Cancel = `-- relay: cancel
delete from {schema}outbox_scheduled
where lane = any (array(select generate_series(0, 31))::smallint[]) and due = $2 and seq = $1
returning message_id, tenant, topic, key, type, due`

	// The lanes that have such events: a move holds the locks of its lanes, and deletes the same rows in another order.
	LockScheduled = `-- relay: lock scheduled
select l.lane from {schema}outbox_lane l
where (coalesce($2::text, '') = '' or l.lane = hashtextextended($2::text collate "C", 0) & 31)
	and exists (select from {schema}outbox_scheduled s where s.lane = l.lane and s.topic = $1
		and ($2::text is null or s.key = $2) and ($3::text is null or s.tenant = $3))
order by l.lane for update of l`

	// Chosen is more than gone if a cancellation of one event, which locks no lane, was quicker. The array is
	// for the plan, as in move due.
	CancelAll = `-- relay: cancel all
with chosen as materialized (
	select s.lane, s.due, s.seq from unnest($4::smallint[]) l (lane) cross join lateral (
		select o.lane, o.due, o.seq from {schema}outbox_scheduled o where o.lane = l.lane and o.topic = $1
			and ($2::text is null or o.key = $2) and ($3::text is null or o.tenant = $3)
		order by o.due, o.seq limit $5) s
	limit $5
), gone as (
	delete from {schema}outbox_scheduled s using chosen c
	where s.lane = any (array[c.lane]) and s.due = c.due and s.seq = c.seq
	returning true
)
select (select count(*) from chosen), (select count(*) from gone)`

	StatusScheduled = `-- relay: status scheduled
select count(*), count(*) filter (where due <= clock_timestamp()), min(due) from {schema}outbox_scheduled`
)
