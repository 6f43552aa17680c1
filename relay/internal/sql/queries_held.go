package sql

// The tables beside the outbox, in claims and settles (P3.2, P3.5, P4). The statements compare owner and fence as those
// of queries_engine.go do; those of a settle also check that its own journal entry is still there. Rows are looked up
// with a limit and changed by ctid, for the reasons of settle: a join may read a whole table that vacuum found empty.
const (
	// Whether a lane has parked events, and whether some of them are to be released.
	Look = `-- relay: look
select l.lane, exists (select from {schema}outbox_parked_key k where k.lane = l.lane)
		or exists (select from {schema}outbox_parked p where p.lane = l.lane),
	exists (select from {schema}outbox_parked_key k where k.lane = l.lane and k.state = 'releasing')
		or exists (select from {schema}outbox_parked p where p.lane = l.lane and p.releasing)
from unnest($1::smallint[], $2::bigint[]) f (lane, fence)
join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3`

	// The places that the lanes hold events for. Each topic is one descent of the index, and so is each group of these
	// lanes: a claim that timed out succeeds with fewer lanes. The index has lane + 0, so that no plan uses it to find
	// an id.
	LookHeld = `-- relay: look held
with recursive mine as materialized (
	select l.lane from unnest($1::smallint[], $2::bigint[]) f (lane, fence)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
), t as (
	select n.* from (select h.topic from {schema}outbox_held h order by h.topic limit 1) n
	union all
	select n.* from t cross join lateral (
		select h.topic from {schema}outbox_held h where h.topic > t.topic order by h.topic limit 1) n
), g as (
	select m.lane, t.topic, n.partition from mine m cross join t cross join lateral (
		select h.partition from {schema}outbox_held h where h.topic = t.topic and h.lane + 0 = m.lane
		order by h.partition limit 1) n
	union all
	select g.lane, g.topic, n.partition from g cross join lateral (
		select h.partition from {schema}outbox_held h
		where h.topic = g.topic and h.lane + 0 = g.lane and h.partition > g.partition
		order by h.partition limit 1) n
)
select lane, topic, partition from g`

	// The drained groups that are empty now. There may be thousands of others, which did not change.
	Emptied = `-- relay: emptied
select g.lane, g.topic, g.partition
from unnest($4::smallint[], $5::text[], $6::integer[]) g (lane, topic, partition)
join unnest($1::smallint[], $2::bigint[]) f (lane, fence) on f.lane = g.lane
join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
where not exists (select from (
	select from {schema}outbox_held h where h.topic = g.topic and h.lane + 0 = g.lane and h.partition = g.partition
	order by h.seq limit 1) one)`

	// As take, for lanes that may have marks, or an open entry: rows of marked keys move behind their lists instead
	// (P4).
	TakeMarked = `-- relay: take marked
with ids as materialized (
	select n.last_value, case when exists (select from unnest(nullif(split_part($10::text, ' ', 2), '')::xid8[]) x (xid)
		where pg_visible_in_snapshot(x.xid, pg_current_snapshot())) then 9223372036854775807 else 0 end as blind
	from {schema}outbox_event_id_seq n, pg_sequence q, {schema}outbox_server() c
	where q.seqrelid = '{schema}outbox_event_id_seq'::regclass and q.seqcache = 1 and not q.seqcycle
		and q.seqincrement = 1
		and split_part($10::text, ' ', 1) = c.system || '/' || c.timeline || '/' || q.seqrelid::oid || '/' ||
		pg_relation_filenode(q.seqrelid)
), mine as materialized (
	select l.lane, case when f.next = 0 then l.reserved_seq - $8 + 1 else f.next end as next,
		case when f.floor <= (select last_value from ids) then greatest(f.floor, (select blind from ids))
		else 0 end as floor, f.top
	from unnest($1::smallint[], $2::bigint[], $4::bigint[], $9::bigint[], $11::boolean[], $12::bigint[]) f (lane, fence,
		next, floor, fresh, top)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	where not exists (select from (
		select from {schema}outbox_claim c where c.lane = l.lane and c.first_seq >= case when f.fresh then 0
			else f.next end
		order by c.first_seq limit 1) one)
), picked as materialized (
	select p.*, m.next, p.key <> '' and exists (select from {schema}outbox_parked_key k
		where k.key_hash = sha256(replace(p.topic || '/' || octet_length(p.tenant)::text || '/' || p.tenant || p.key,
			e'\\', e'\\\\')::bytea)) as marked
	from mine m cross join lateral (
		select s.*, sum(s.size) over (order by s.id rows unbounded preceding) as bytes
		from (
			select e.lane, e.id, e.message_id, e.source, e.tenant, e.topic, e.key, e.type, e.content_type, e.headers,
				e.payload,
				coalesce(e.event_time, e.created_at) as at,
				coalesce(octet_length(e.payload), 0) + octet_length(e.key) + octet_length(e.tenant) +
				octet_length(e.source)
				+ octet_length(e.type) + octet_length(e.content_type) + case
				when pg_column_compression(e.headers) is null
				then coalesce(pg_column_size(e.headers), 0) else octet_length(e.headers::text) end + $7 as size
			from {schema}outbox_event e
			where e.lane = m.lane and e.id > m.floor and e.id <= m.top
			order by e.id
			limit $5
		) s
	) p
	where p.bytes <= $6 or p.bytes = p.size
), behind as (
	delete from only {schema}outbox_event e where e.ctid = any (array(
		select r.ctid from picked p cross join lateral (
			select o.ctid from only {schema}outbox_event o where o.lane = p.lane and o.id = p.id limit 1) r
		where p.marked))
	returning e.*
), put as (
	insert into {schema}outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic,
		key, type, content_type, headers, payload, event_time, created_at)
	select lane, id, false, false, 0, message_id, source, tenant, topic, key, type, content_type, headers, payload,
		event_time, created_at
	from behind
), entry as (
	insert into {schema}outbox_claim (lane, first_seq, ids, seqs)
	select lane, min(next), array_agg(id order by id), array(select generate_series(min(next),
		min(next) + count(id) - 1))
	from picked where not marked group by lane
	returning true
)
select lane, id, marked, message_id, source, tenant, topic, key, type, content_type, case
	when not marked then headers end,
	case when not marked then payload end, at from picked
where (select 1 / ((select count(*) from entry) = (select count(distinct lane) from picked
	where not marked))::integer) = 1`

	// Held events of partitions that answer again, under the numbers that they have: the count is shared by the groups,
	// and the bytes limit all groups of a lane together. As in take, the lanes have no open entry; the journal's key
	// would refuse one with the same number. Events behind a parked one of their key join its list instead (P4): a
	// settle moves only its own claim, however many events of the key are held.
	Drain = `-- relay: drain
with mine as materialized (
	select l.lane
	from unnest($1::smallint[], $2::bigint[]) f (lane, fence)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
), picked as materialized (
	select p.*, p.key <> '' and exists (select from {schema}outbox_parked w
		where w.key_hash = p.key_hash and not w.alone and w.id < p.id) as behind
	from mine m cross join lateral (
		select s.*, sum(s.size) over (order by s.nth, s.seq rows unbounded preceding) as bytes
		from (
			select g.nth, h.lane, h.id, h.seq, h.partition, h.sent, h.maybe, h.message_id, h.source, h.tenant, h.topic,
				h.key, h.key_hash,
				h.type, h.content_type, h.headers, h.payload, coalesce(h.event_time, h.created_at) as at,
				coalesce(octet_length(h.payload), 0) + octet_length(h.key) + octet_length(h.tenant) +
				octet_length(h.source)
				+ octet_length(h.type) + octet_length(h.content_type) + case
				when pg_column_compression(h.headers) is null
				then coalesce(pg_column_size(h.headers), 0) else octet_length(h.headers::text) end + $9 as size
			from unnest($4::smallint[], $5::text[], $6::integer[], $7::integer[]) with ordinality g (lane, topic,
				partition, most, nth)
			cross join lateral (
				select h.* from {schema}outbox_held h
				where h.lane + 0 = g.lane and h.topic = g.topic and h.partition = g.partition
				order by h.seq
				limit g.most) h
			where g.lane = m.lane
		) s
	) p
	where p.bytes <= $8 or p.bytes = p.size
), unheld as (
	delete from {schema}outbox_held h where h.ctid = any (array(
		select r.ctid from picked p cross join lateral (
			select o.ctid from {schema}outbox_held o where o.lane = p.lane and o.id = p.id limit 1) r
		where p.behind))
	returning h.*
), put as (
	insert into {schema}outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic,
		key, type, content_type, headers, payload, event_time, created_at)
	select lane, id, false, sent or maybe, 0, message_id, source, tenant, topic, key, type, content_type, headers,
		payload, event_time, created_at
	from unheld
), entry as (
	insert into {schema}outbox_claim (lane, first_seq, ids, seqs)
	select lane, min(seq), array_agg(id order by seq), array_agg(seq order by seq) from picked where not behind
	group by lane
	returning true
)
select lane, id, seq, partition, sent, maybe, behind, message_id, source, tenant, topic, key, type, content_type,
	case when not behind then headers end, case when not behind then payload end, at from picked
where (select 1 / ((select count(*) from entry) = (select count(distinct lane) from picked
	where not behind))::integer) = 1`

	// A mark is deleted only here, under the lane's lock and with an empty list. An array of keys allows no join.
	Unmark = `-- relay: unmark
delete from {schema}outbox_parked_key k where k.key_hash = any (array(
	select r.key_hash from unnest($1::smallint[], $2::bigint[]) f (lane, fence)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	cross join lateral (
		select m.key_hash from {schema}outbox_parked_key m where m.lane = l.lane and m.state = 'releasing'
		order by m.since limit $4) r
	where not exists (select from (select from {schema}outbox_parked p where p.key_hash = r.key_hash and not p.alone
		order by p.id limit 1) one)))`

	// Events of keys that are being released, in the order of their lists and under new numbers, straight from the
	// list: none goes back into outbox_event, where a late commit would overtake it. The keys share the limit: the
	// number of rows that are read is about that of the events that are taken, however many lists there are.
	List = `-- relay: list
with mine as materialized (
	select l.lane, case when f.next = 0 then l.reserved_seq - $8 + 1 else f.next end as next
	from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, next)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	where not exists (select from (
		select from {schema}outbox_claim c where c.lane = l.lane and c.first_seq >= f.next order by c.first_seq
		limit 1) one)
), keys as materialized (
	select m.lane, k.key_hash, greatest($5 / count(*) over (partition by m.lane), 1) as share
	from mine m cross join lateral (
		select k.key_hash from {schema}outbox_parked_key k
		where k.lane = m.lane and k.state = 'releasing' order by k.since limit $5) k
), picked as materialized (
	select p.*, m.next
	from mine m cross join lateral (
		select r.*, sum(r.size) over (order by r.id rows unbounded preceding) as bytes
		from (
			select w.lane, w.id, coalesce(octet_length(w.payload), 0) + octet_length(w.key) + octet_length(w.tenant) +
				octet_length(w.source)
				+ octet_length(w.type) + octet_length(w.content_type) + case
				when pg_column_compression(w.headers) is null
				then coalesce(pg_column_size(w.headers), 0) else octet_length(w.headers::text) end + $7 as size
			from keys k
			cross join lateral (
				select p.* from {schema}outbox_parked p
				where p.key_hash = k.key_hash and not p.alone order by p.id limit k.share) w
			where k.lane = m.lane
			union all
			select * from (
				select p.lane, p.id, coalesce(octet_length(p.payload), 0) + octet_length(p.key) + octet_length(p.tenant)
					+ octet_length(p.source)
				+ octet_length(p.type) + octet_length(p.content_type) + case
				when pg_column_compression(p.headers) is null
				then coalesce(pg_column_size(p.headers), 0) else octet_length(p.headers::text) end + $7
				from {schema}outbox_parked p where p.lane = m.lane and p.releasing order by p.id limit $5) a
		) r
		order by r.id
		limit $5
	) p
	where p.bytes <= $6 or p.bytes = p.size
), entry as (
	insert into {schema}outbox_claim (lane, first_seq, ids, seqs)
	select lane, min(next), array_agg(id order by id), array(select generate_series(min(next),
		min(next) + count(id) - 1))
	from picked group by lane
	returning true
)
select p.lane, p.id, p.alone, p.maybe_published, p.message_id, p.source, p.tenant, p.topic, p.key, p.type,
	p.content_type, p.headers, p.payload,
	coalesce(p.event_time, p.created_at)
from picked c cross join lateral (
	select o.* from {schema}outbox_parked o where o.lane = c.lane and o.id = c.id limit 1) p
where (select 1 / ((select count(*) from entry) = (select count(distinct lane) from picked))::integer) = 1`

	// What is found and stays would be published again, and be another event then: current_setting fails, as in settle.
	SettleAcked = `-- relay: settle acked
with own as materialized (
	select c.lane from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	cross join lateral (
		select c.lane from {schema}outbox_claim c where c.lane = l.lane and c.first_seq = f.first_seq limit 1) c
), v as materialized (
	select v.lane, v.id from unnest($5::smallint[], $6::bigint[]) v (lane, id) where v.lane in (select lane from own)
), found as materialized (
	select e.ctid as event, h.ctid as held, p.ctid as parked from v
	left join lateral (select e.ctid from only {schema}outbox_event e where e.lane = v.lane and e.id = v.id
		limit 1) e on true
	left join lateral (select h.ctid from {schema}outbox_held h where h.lane = v.lane and h.id = v.id limit 1) h on true
	left join lateral (select p.ctid from {schema}outbox_parked p where p.lane = v.lane and p.id = v.id
		limit 1) p on true
), taken as (
	delete from only {schema}outbox_event e where e.ctid = any (array(select event from found where event is not null))
	returning true
), drained as (
	delete from {schema}outbox_held h where h.ctid = any (array(select held from found where held is not null))
	returning true
), released as (
	delete from {schema}outbox_parked p where p.ctid = any (array(select parked from found where parked is not null))
	returning true
)
select case when (select count(*) from taken) + (select count(*) from drained) + (select count(*) from released)
	< (select count(event) + count(held) + count(parked) from found)
	then current_setting('published events cannot be deleted: a trigger of outbox_event, outbox_held or outbox_parked '
		'keeps them') end`

	// Refused events and those of their keys. Rows are found as in settle, and for the same reason. What a user's
	// trigger takes away would be nowhere: current_setting fails, with its argument in the error. A mark is set only
	// where a row was moved: an event that was discarded meanwhile parks no key.
	SettlePark = `-- relay: settle park
with own as materialized (
	select c.lane from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	cross join lateral (
		select c.lane from {schema}outbox_claim c where c.lane = l.lane and c.first_seq = f.first_seq limit 1) c
), v as materialized (
	select v.* from unnest($5::smallint[], $6::bigint[], $7::boolean[], $8::boolean[], $9::integer[], $10::text[],
		$11::text[])
		v (lane, id, alone, sent, attempts, reason, code)
	where v.lane in (select lane from own)
), found as materialized (
	select v.*, e.ctid as event, h.ctid as held, p.ctid as parked from v
	left join lateral (select e.ctid from only {schema}outbox_event e where e.lane = v.lane and e.id = v.id
		limit 1) e on true
	left join lateral (select h.ctid from {schema}outbox_held h where h.lane = v.lane and h.id = v.id limit 1) h on true
	left join lateral (select p.ctid from {schema}outbox_parked p where p.lane = v.lane and p.id = v.id
		limit 1) p on true
), taken as (
	delete from only {schema}outbox_event e using found v where e.ctid = v.event
	returning e.lane, e.id, v.alone, v.sent as maybe, v.attempts, v.reason, v.code, e.message_id, e.source, e.tenant,
		e.topic, e.key, e.type, e.content_type, e.headers, e.payload, e.event_time, e.created_at
), unheld as (
	delete from {schema}outbox_held h using found v where h.ctid = v.held
	returning h.lane, h.id, v.alone, v.sent or h.sent or h.maybe as maybe, v.attempts, v.reason, v.code, h.message_id,
		h.source, h.tenant, h.topic, h.key, h.type, h.content_type, h.headers, h.payload, h.event_time, h.created_at
), again as (
	update {schema}outbox_parked p set releasing = false, attempts = p.attempts + v.attempts,
		maybe_published = p.maybe_published or v.sent,
		reason = case when v.attempts > 0 then v.reason else p.reason end,
		code = case when v.attempts > 0 then v.code else p.code end
	from found v where p.ctid = v.parked
	returning p.lane, p.tenant, p.topic, p.key, p.alone, v.attempts, v.reason, v.code
), moved as (
	select * from taken union all select * from unheld
), put as (
	insert into {schema}outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source,
		tenant, topic, key, type, content_type, headers, payload, event_time, created_at)
	select lane, id, alone, maybe, attempts, case when attempts > 0 then reason else '' end, case
		when attempts > 0 then code else '' end,
		message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time, created_at
	from moved
	returning true
), marks as (
	select distinct on (m.tenant, m.topic, m.key) m.lane, m.tenant, m.topic, m.key, m.reason, m.code
	from (
		select lane, tenant, topic, key, attempts, reason, code from moved where not alone
		union all
		select lane, tenant, topic, key, attempts, reason, code from again where not alone
	) m
	order by m.tenant, m.topic, m.key, m.attempts desc
), marked as (
	insert into {schema}outbox_parked_key (lane, tenant, topic, key, reason, code)
	select * from marks
	on conflict (key_hash) do update set state = 'parked', since = clock_timestamp(), reason = excluded.reason,
		code = excluded.code
	returning true
)
select case when (select count(*) from put) <> (select count(*) from moved)
	or (select count(*) from marked) <> (select count(*) from marks)
	then current_setting('a trigger of outbox_parked or outbox_parked_key takes away what is parked')
	when (select count(*) from moved) + (select count(*) from again)
	< (select count(event) + count(held) + count(parked) from found)
	then current_setting('refused events cannot be parked: a trigger keeps them where they are') end`

	// Events that cannot be sent now. Those that are held already stay, but their partition may change.
	SettleHold = `-- relay: settle hold
with own as materialized (
	select c.lane from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	cross join lateral (
		select c.lane from {schema}outbox_claim c where c.lane = l.lane and c.first_seq = f.first_seq limit 1) c
), v as materialized (
	select v.* from unnest($5::smallint[], $6::bigint[], $7::bigint[], $8::integer[], $9::boolean[]) v (lane, id, seq,
		partition, sent)
	where v.lane in (select lane from own)
), found as materialized (
	select v.*, e.ctid as event, h.ctid as held, p.ctid as parked from v
	left join lateral (select e.ctid from only {schema}outbox_event e where e.lane = v.lane and e.id = v.id
		limit 1) e on true
	left join lateral (select h.ctid from {schema}outbox_held h where h.lane = v.lane and h.id = v.id limit 1) h on true
	left join lateral (select p.ctid from {schema}outbox_parked p where p.lane = v.lane and p.id = v.id
		limit 1) p on true
), taken as (
	delete from only {schema}outbox_event e using found v where e.ctid = v.event
	returning e.lane, e.id, e.topic, v.partition, v.seq, v.sent, false as maybe, e.message_id, e.source, e.tenant,
		e.key, e.type, e.content_type, e.headers, e.payload, e.event_time, e.created_at
), listed as (
	delete from {schema}outbox_parked p using found v where p.ctid = v.parked
	returning p.lane, p.id, p.topic, v.partition, v.seq, v.sent, p.maybe_published as maybe, p.message_id, p.source,
		p.tenant, p.key, p.type, p.content_type, p.headers, p.payload, p.event_time, p.created_at
), stays as (
	update {schema}outbox_held h set partition = v.partition, sent = h.sent or v.sent
	from found v where h.ctid = v.held and (h.partition <> v.partition or v.sent and not h.sent)
), moved as (
	select * from taken union all select * from listed
), put as (
	insert into {schema}outbox_held (lane, id, topic, partition, seq, sent, maybe, message_id, source, tenant, key,
		type, content_type, headers, payload, event_time, created_at)
	select * from moved
	returning true
)
select case when (select count(*) from put) <> (select count(*) from moved)
	then current_setting('a trigger of outbox_held takes away what is held')
	when (select count(*) from moved) < (select count(event) + count(parked) from found)
	then current_setting('events cannot be held: a trigger keeps them where they are') end`

	SettleEntries = `-- relay: settle entries
delete from {schema}outbox_claim c where c.ctid = any (array(
	select r.ctid from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	cross join lateral (
		select o.ctid from {schema}outbox_claim o where o.lane = l.lane and o.first_seq = f.first_seq limit 1) r))
returning c.lane`

	// The first held event of each group, to try whether its place answers. It is recorded as sent before it is, and
	// returned with its former record. For a topic as a whole there is one only if no partition holds older events: a
	// settle may have moved some there that this relay does not know of yet. For a paused topic there is none. Events
	// that must join a list of parked events are not sent (see drain); if the first hundred are such, none is returned.
	Try = `-- relay: try
with head as materialized (
	select h.row, h.sent
	from unnest($1::smallint[], $2::bigint[], $4::text[], $5::integer[]) f (lane, fence, topic, partition)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3 and (f.partition >= 0
		or not exists (select from (
			select from {schema}outbox_held o where o.topic = f.topic and o.lane + 0 = f.lane and o.partition >= 0
			order by o.partition limit 1) one))
		and not exists (select from {schema}outbox_paused_topic p where p.topic = f.topic)
	cross join lateral (
		select h.row, h.sent from (
			select h.ctid as row, h.id, h.seq, h.sent, h.key, h.key_hash from {schema}outbox_held h
			where h.lane + 0 = f.lane and h.topic = f.topic and h.partition = f.partition order by h.seq limit 100) h
		where h.key = '' or not exists (select from {schema}outbox_parked w where w.key_hash = h.key_hash
			and not w.alone and w.id < h.id)
		order by h.seq limit 1) h
)
update {schema}outbox_held t set sent = true from head h where t.ctid = h.row
returning t.lane, t.id, t.seq, t.partition, h.sent, t.maybe, t.message_id, t.source, t.tenant, t.topic, t.key, t.type,
	t.content_type,
	t.headers, t.payload, coalesce(t.event_time, t.created_at)`

	// Undoes the record of a try: the topic was certainly refused.
	Untry = `-- relay: untry
update {schema}outbox_held t set sent = false where t.ctid = any (array(
	select r.ctid from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, id)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	cross join lateral (
		select o.ctid from {schema}outbox_held o where o.lane = l.lane and o.id = f.id limit 1) r))`
)
