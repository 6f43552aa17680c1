package sql

// The statements of heartbeats, probes, claims and settles. A claim or a settle is one pipeline: begin, settings, lock,
// ..., commit (P3.1). Statements after the lock compare owner and fence again: in READ COMMITTED each takes a new
// snapshot, and the rows that the first statement locked cannot change any more.
const (
	Begin = `-- relay: begin
begin isolation level read committed read write`

	// A relay's sessions wait for events: an end of one would count as an outage. Behind a pooler it may be another
	// session that keeps the setting, which asks nothing of anybody.
	Lasting = `-- relay: lasting
set idle_session_timeout = 0`

	Commit = `-- relay: commit
commit`

	Rollback = `-- relay: rollback
rollback`

	// A session inherits settings from its role and its database. The barrier is a warning, and one that row-level
	// security hides rows from would neither publish them nor wait for them: without it Postgres refuses.
	//
	// Settings for the planner: outbox_event is empty or huge, whatever its statistics are, and every lookup here is by
	// the primary key. So a plan does not depend on parameters, and planning each time took half of a small claim.
	//
	// Settings of texts: in the query modes that poolers need, pgx reads times and bytes as texts, of one form each.
	// Postgres has transaction_timeout from 17 on. Each statement has a time-out already.
	Settings = `-- relay: settings
select set_config('synchronous_commit', $1, true),
	set_config('statement_timeout', $2, true),
	set_config('lock_timeout', $3, true),
	set_config('idle_in_transaction_session_timeout', $2, true),
	set_config('client_min_messages', 'warning', true),
	set_config('row_security', 'off', true),
	set_config('work_mem', '32MB', true),
	set_config('enable_seqscan', 'off', true),
	set_config('enable_bitmapscan', 'off', true),
	set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true),
	set_config('jit', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true),
	set_config('datestyle', 'iso', true),
	set_config('bytea_output', 'hex', true),
	set_config('array_nulls', 'on', true),
	case when current_setting('transaction_timeout', true) <> '0' then set_config('transaction_timeout', '0', true) end`

	// A pipeline without a begin is one transaction, so this is for the probe alone. Its plan is kept, and a table that
	// was empty then may be huge later. The cost of a scan that is off would have JIT compile it.
	ProbeSettings = `-- relay: probe settings
select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('row_security', 'off', true),
	set_config('datestyle', 'iso', true), set_config('enable_seqscan', 'off', true),
	set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`

	Lock = `-- relay: lock
select l.lane
from {schema}outbox_lane l
join unnest($1::smallint[], $2::bigint[]) f (lane, fence) on l.lane = f.lane and l.fence = f.fence
where l.owner = $3
order by l.lane
for update of l`

	// Fails, with a division by zero, if the database is not as the relay knows it, even if a pooler hides that: either
	// a server has taken over, which may lack reservations of numbers and settles; or the entry that a lane settled
	// last is there, because a crash has undone the settle. The claim must then change nothing: it uses the lanes'
	// blocks, and takes the journal of lanes with a last entry for empty.
	AsKnown = `-- relay: as known
select 1 / (m.outbox_id::text || '.' || m.incarnation = $5
	and m.system_identifier = c.system and m.timeline = c.timeline
	and not exists (
		select from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
		cross join lateral (
			select from {schema}outbox_lane l where l.lane = f.lane and l.fence = f.fence and l.owner = $3 limit 1) l
		cross join lateral (
			select from {schema}outbox_claim c where c.lane = f.lane and c.first_seq = f.first_seq limit 1) c))::integer
from {schema}outbox_meta m, {schema}outbox_server() c`

	Reserve = `-- relay: reserve
update {schema}outbox_lane l set reserved_seq = l.reserved_seq + $4
from unnest($1::smallint[], $2::bigint[]) f (lane, fence)
where l.lane = f.lane and l.fence = f.fence and l.owner = $3
returning l.lane, l.reserved_seq`

	// An incarnation is a time and not a count: see NewIncarnation.
	RaiseIncarnation = `-- relay: raise incarnation
update {schema}outbox_meta m
set incarnation = greatest(m.incarnation + 1, extract(epoch
	from clock_timestamp() - timestamptz '2020-01-01 00:00:00+00')::integer),
	system_identifier = c.system,
	timeline = c.timeline
from {schema}outbox_server() c
where m.system_identifier <> c.system or m.timeline <> c.timeline`

	// The open journal entry exactly as it is. A row is in one of three tables; a journalled id that is in none of them
	// was discarded, and its number stays a gap. The limits are for the plan, as in settle, and so is the offset.
	Open = `-- relay: open
select c.lane, c.first_seq, u.seq, e.id is null and h.id is null and p.id is null, u.id,
	(case when h.id is not null then 1 when p.id is not null then 2 else 0 end)::smallint, coalesce(h.partition, 0),
	coalesce(p.alone, false), coalesce(h.maybe, p.maybe_published, false),
	coalesce(e.message_id, h.message_id, p.message_id), coalesce(e.source, h.source, p.source),
	coalesce(e.tenant, h.tenant, p.tenant),
	coalesce(e.topic, h.topic, p.topic), coalesce(e.key, h.key, p.key), coalesce(e.type, h.type, p.type),
	coalesce(e.content_type, h.content_type, p.content_type), coalesce(e.headers, h.headers, p.headers),
	coalesce(e.payload, h.payload, p.payload),
	coalesce(e.event_time, e.created_at, h.event_time, h.created_at, p.event_time, p.created_at)
from unnest($1::smallint[], $2::bigint[]) f (lane, fence)
join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
cross join lateral (
	select o.* from {schema}outbox_claim o where o.lane = l.lane order by o.first_seq offset 0) c
cross join lateral unnest(c.ids, c.seqs) u (id, seq)
left join lateral (select * from {schema}outbox_event e where e.lane = c.lane and e.id = u.id limit 1) e on true
left join lateral (select * from {schema}outbox_held h where h.lane = c.lane and h.id = u.id limit 1) h on true
left join lateral (select * from {schema}outbox_parked p where p.lane = c.lane and p.id = u.id limit 1) p on true
order by c.lane, u.seq`

	// The next rows of each lane by id, as many as count and bytes allow and at least one, and one journal entry for
	// each lane. An event's size is its size in memory: compressed headers count as the text that is sent. Floors apply
	// only in their own numbering of ids (P6), and while the transactions named after it are invisible; otherwise no
	// row is found. Numbers continue the relay's block, or start the block reserved just before ($4 = 0), in the order
	// of ids: the relay assigns them to the rows itself, which saves a second window function.
	//
	// These lanes are known to have no open entry, because they are not fresh (and see AsKnown). The journal is read
	// only from the next number on, where the index ends: settled entries that a snapshot keeps from vacuum would be
	// visited one by one.
	//
	// A claim without a journal entry would be published again and again, so the statement fails, with a division by
	// zero, if an entry was taken away: by a user's trigger.
	Take = `-- relay: take
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
	from unnest($1::smallint[], $2::bigint[], $4::bigint[], $9::bigint[], $11::bigint[]) f (lane, fence, next, floor,
		top)
	join {schema}outbox_lane l on l.lane = f.lane and l.fence = f.fence and l.owner = $3
	where not exists (select from (
		select from {schema}outbox_claim c where c.lane = l.lane and c.first_seq >= f.next order by c.first_seq
		limit 1) one)
), picked as materialized (
	select p.*, m.next
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
), entry as (
	insert into {schema}outbox_claim (lane, first_seq, ids, seqs)
	select lane, min(next), array_agg(id order by id), array(select generate_series(min(next),
		min(next) + count(id) - 1))
	from picked group by lane
	returning true
)
select lane, id, message_id, source, tenant, topic, key, type, content_type, headers, payload, at from picked
where (select 1 / ((select count(*) from entry) = (select count(distinct lane) from picked))::integer) = 1`

	// Deletes exactly its own entries and their rows, and nothing where an entry is gone. Each lane is returned with
	// the number of deleted rows, of all lanes together.
	//
	// The form is for the planner: a vacuum that can remove nothing, because of an old snapshot, records the table as
	// empty. A join would then read every dead row of a lane. A limit keeps each lookup one descent of the index, and
	// an array of ctids allows no other plan. The lanes are locked, so their rows do not move. Only: see Unfit.
	//
	// A row that is found and stays, without its entry, would get a new number, and be published as another event:
	// current_setting fails, with its argument in the error.
	Settle = `-- relay: settle
with own as materialized (
	select f.lane, c.entry, c.ids
	from unnest($1::smallint[], $2::bigint[], $4::bigint[]) f (lane, fence, first_seq)
	cross join lateral (
		select from {schema}outbox_lane l where l.lane = f.lane and l.fence = f.fence and l.owner = $3 limit 1) l
	cross join lateral (
		select c.ctid as entry, c.ids from {schema}outbox_claim c where c.lane = f.lane and c.first_seq = f.first_seq
		limit 1) c
), entries as (
	delete from {schema}outbox_claim c where c.ctid = any (array(select own.entry from own))
), found as materialized (
	select r.ctid as row from own cross join lateral unnest(own.ids) u (id) cross join lateral (
		select e.ctid from only {schema}outbox_event e where e.lane = own.lane and e.id = u.id limit 1) r
), gone as (
	delete from only {schema}outbox_event e where e.ctid = any (array(select found.row from found))
	returning true
)
select lane, case when (select count(*) from gone) < (select count(*) from found)
	then current_setting('published events cannot be deleted: a trigger of outbox_event keeps them')::bigint
	else (select count(*) from gone) end from own`

	// The limit keeps the planner from a join that reads the whole table, which it prefers once vacuum has recorded the
	// table as empty.
	Probe = `-- relay: probe
with ids as materialized (
	select n.last_value, case when exists (select from unnest(nullif(split_part($4::text, ' ', 2), '')::xid8[]) x (xid)
		where pg_visible_in_snapshot(x.xid, pg_current_snapshot())) then 9223372036854775807 else 0 end as blind
	from {schema}outbox_event_id_seq n, pg_sequence q, {schema}outbox_server() c
	where q.seqrelid = '{schema}outbox_event_id_seq'::regclass and q.seqcache = 1 and not q.seqcycle
		and q.seqincrement = 1
		and split_part($4::text, ' ', 1) = c.system || '/' || c.timeline || '/' || q.seqrelid::oid || '/' ||
		pg_relation_filenode(q.seqrelid)
)
select array(select f.lane from (
		select u.lane, case when u.floor <= (select last_value from ids) then greatest(u.floor, (select blind from ids))
			else 0 end as floor
		from unnest($1::smallint[], $3::bigint[]) u (lane, floor)) f
		where exists (select from (
			select from {schema}outbox_event e where e.lane = f.lane and e.id > f.floor order by e.id limit 1) one)),
	exists (select from {schema}outbox_lane l where l.owner is null or (l.lease_until <= clock_timestamp()
		and not exists (select from {schema}relay_member m where m.owner = l.owner
			and m.lease_until > clock_timestamp()))),
	(select count(*) from {schema}relay_member
		where seen > clock_timestamp() - $2::interval and seen <= clock_timestamp()
			and seen >= joined + $2::interval / 3),
	array(select r.lane from unnest($5::smallint[]) r (lane)
		where exists (select from (select from {schema}outbox_parked_key k
				where k.lane = r.lane and k.state = 'releasing' order by k.since limit 1) one)
			or exists (select from (select from {schema}outbox_parked p
				where p.lane = r.lane and p.releasing order by p.id limit 1) one))`

	// A relay that does not reach its publisher ($4 is false) joins anew each time. Its own report ($5 to $8) is for
	// readers of its row.
	Join = `-- relay: join
insert into {schema}relay_member (owner, name, seen, lease_until, version, trouble, trouble_since, acked_at)
values ($1, $2, clock_timestamp(), clock_timestamp() + $3::interval, $5, $6, clock_timestamp() - $7::interval,
	clock_timestamp() - $8::interval)
on conflict (owner) do update set seen = excluded.seen, lease_until = excluded.lease_until,
	trouble = excluded.trouble, trouble_since = excluded.trouble_since, acked_at = excluded.acked_at,
	joined = case when $4 then relay_member.joined else clock_timestamp() end
returning seen`

	// Lanes that are missing, whether there is a numbering, and the first table with partitions or child tables: one
	// ctid is a row in each of them.
	Unfit = `-- relay: unfit
select 32 - (select count(*) from {schema}outbox_lane), not exists (select from {schema}outbox_meta),
	(select coalesce(min(i.inhparent::regclass::text), '') from pg_inherits i where i.inhparent = any (array[
	'{schema}outbox_event', '{schema}outbox_claim', '{schema}outbox_held', '{schema}outbox_parked']::regclass[]))`

	// The events of a proof are always rolled back. Their ids are below those that claims read.
	ProveAppend = `-- relay: prove append
insert into {schema}outbox_event (id, topic, key, type) overriding system value
values ($1, 'effectonce.proof', 'proof', 'proof')`

	ProveSee = `-- relay: prove see
select count(*) from {schema}outbox_event
where lane = any (array(select generate_series(0, 31))::smallint[]) and id = $1`

	ProveSettle = `-- relay: prove settle
delete from {schema}outbox_event where lane = any (array(select generate_series(0, 31))::smallint[]) and id = $1`

	// A member seen later than now was seen before the clock went back.
	Prune = `-- relay: prune
delete from {schema}relay_member where owner in (
	select owner from {schema}relay_member
	where seen < clock_timestamp() - 10 * $1::interval or seen > clock_timestamp() + 10 * $1::interval
	for update skip locked)`

	// The relays that count for a share: those that have been members, and well, for the time of a heartbeat, and the
	// asking one. A relay that crashes after every start must not take lanes from the others each time.
	Members = `-- relay: members
with member as (select owner, seen, seen >= joined + $1::interval / 3 as counts from {schema}relay_member)
select owner, counts from member
where owner = $2 or (counts and seen > clock_timestamp() - $1::interval and seen <= clock_timestamp()) order by owner`

	// A relay's lease is in its own row, so that a heartbeat writes one row and not all its lanes. A relay that wants
	// to take its lanes locks that row first, and so does the heartbeat: its later reads of its lanes stay true.
	Present = `-- relay: present
select lease_until > clock_timestamp() from {schema}relay_member where owner = $1 for update`

	// Own lanes: kept, or taken back with a higher fence if the lease had expired, if it ends later than any lease
	// could (the clock went back), or if the outcome of one of the relay's transactions is unknown ($3). The own row
	// still has the lease of the heartbeat before.
	Renew = `-- relay: renew
with own as materialized (
	select l.lane, l.fence, l.lane = any ($3::smallint[])
		or ((l.lease_until <= clock_timestamp() or l.lease_until > clock_timestamp() + $2::interval)
			and not exists (select from {schema}relay_member m where m.owner = l.owner
				and m.lease_until > clock_timestamp() and m.lease_until <= clock_timestamp() + $2::interval)) as again
	from {schema}outbox_lane l where l.owner = $1
), locked as (
	select l.lane from {schema}outbox_lane l
	where l.owner = $1 and l.lane in (select own.lane from own where own.again) order by l.lane for update
), raised as (
	update {schema}outbox_lane l set lease_until = clock_timestamp() + $2::interval, fence = l.fence + 1
	from locked where locked.lane = l.lane
	returning l.lane, l.fence
)
select lane, fence from own where not again union all select lane, fence from raised`

	// Free lanes: without an owner, or of a relay that has left or whose lease expired, for at least $4. The lane's own
	// lease is that of its taking, until the first heartbeat.
	TakeOver = `-- relay: take over
with dead as materialized (
	select m.owner, m.name from {schema}relay_member m
	where m.owner <> $1 and (m.lease_until <= clock_timestamp() - $4::interval
		or m.lease_until > clock_timestamp() + $2::interval)
	order by m.owner for update skip locked
), free as (
	select l.lane, coalesce((select nullif(dead.name, '') from dead where dead.owner = l.owner), l.owner::text,
		'') as whose
	from {schema}outbox_lane l
	where (l.lease_until <= clock_timestamp() - $4::interval or l.lease_until > clock_timestamp() + $2::interval)
		and (l.owner is null or l.owner in (select dead.owner from dead) or not exists (select
			from {schema}relay_member m where m.owner = l.owner))
	order by l.lane limit $3 for update of l skip locked
)
update {schema}outbox_lane l set owner = $1, fence = l.fence + 1, lease_until = clock_timestamp() + $2::interval
from free where free.lane = l.lane
returning l.lane, l.fence, free.whose`

	// A free lane's lease ends when it was given back.
	Release = `-- relay: release
with own as (select lane from {schema}outbox_lane where owner = $1 and lane = any ($2::smallint[]) order by lane
	for update)
update {schema}outbox_lane l set owner = null, lease_until = clock_timestamp() from own where own.lane = l.lane
returning l.lane`

	// A lane that the relay could not give back has only this lease.
	Leave = `-- relay: leave
delete from {schema}relay_member where owner = $1 and not exists (select from {schema}outbox_lane where owner = $1)`

	// A pin is not lost in a crash: a topic without one counts as never published to.
	PinSettings = `-- relay: pin settings
select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local')`

	// The commit of another relay at the same moment is invisible: then the cluster is '' or the count 0, and the relay
	// asks again.
	Pin = `-- relay: pin
with home as (
	update {schema}outbox_meta set kafka_cluster = $3 where kafka_cluster is null and $3 <> '' and $2 > 0
	returning kafka_cluster
), cluster as (
	select kafka_cluster from home union all select kafka_cluster from {schema}outbox_meta
	where kafka_cluster is not null
), mine as (
	insert into {schema}outbox_topic (topic, partitions) select $1::text, $2::integer
	where $2 > 0 and ($3 = '' or $3 in (select kafka_cluster from cluster)) on conflict (topic) do nothing
	returning partitions
)
select coalesce((select kafka_cluster from cluster), ''),
	coalesce((select partitions from mine), (select partitions from {schema}outbox_topic where topic = $1), 0)`

	Paused = `-- relay: paused
select array(select topic::text from {schema}outbox_paused_topic order by topic)`
)
