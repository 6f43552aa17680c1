package sql

// Operators' reads and changes. A change of a parked event or a mark locks its lane first, as claims and settles do, so
// that the decision of a claim holds until its commit.
const (
	Parked = `-- relay: parked
select p.id, p.lane, p.message_id, p.source, p.tenant, p.topic, p.key, p.type, p.content_type,
	case when p.attempts = 0 then 'behind' else 'refused' end, p.alone,
	p.releasing or coalesce(k.state = 'releasing', false), p.maybe_published, p.attempts, p.reason, p.code,
	p.created_at, p.parked_at, coalesce(octet_length(p.payload), -1), case when $10 then p.headers end, case
	when $10 then p.payload end
from {schema}outbox_parked p left join lateral (
	select m.state from {schema}outbox_parked_key m where m.key_hash = p.key_hash and not p.alone limit 1) k on true
where ($1::bigint = 0 or p.id + 0 = $1) and ($2::uuid is null or p.message_id = $2)
	and ($3::text is null or p.tenant = $3) and ($4::text = '' or p.topic = $4) and ($5::text = '' or p.key = $5)
	and ($6::text = '' or p.code = $6)
	and p.parked_at <= clock_timestamp() - $7::interval and p.id + 0 > $8
	and ($11::text = '' or $11 = case when p.attempts = 0 then 'behind' else 'refused' end)
order by p.id + 0 limit $9`

	BlockedKeys = `-- relay: blocked keys
select '', k.tenant, k.topic, k.key, k.state = 'releasing', false, k.since, k.reason, k.code, l.waiting,
	coalesce(l.oldest, k.since),
	coalesce(l.head_id, 0), l.head
from {schema}outbox_parked_key k cross join lateral (
	select count(*) as waiting, min(p.created_at) as oldest, min(p.id) as head_id,
		(array_agg(p.message_id order by p.id))[1] as head
	from {schema}outbox_parked p where p.key_hash = k.key_hash and not p.alone) l
where ($1::text is null or k.tenant = $1) and ($2::text = '' or k.topic = $2) and ($3::text = '' or k.key = $3)
	and ($4::text = '' or k.code = $4) and k.since <= clock_timestamp() - $5::interval
order by k.since, k.key_hash limit $6`

	// A key is counted by the first event of its list.
	Failures = `-- relay: failures
select '', u.tenant, u.topic, u.key, u.alone, u.id, u.type, u.kind, u.code, u.reason, u.at,
	case when $8::boolean and not u.alone then (select count(*) from {schema}outbox_parked w
		where w.key_hash = u.key_hash and not w.alone) else 0 end
from (
	select k.key_hash, k.tenant, k.topic, k.key, false as alone, coalesce(h.id, 0) as id, coalesce(h.type, '') as type,
		case when h.attempts > 0 then 'refused' else 'behind' end as kind, k.code, k.reason, k.since as at
	from {schema}outbox_parked_key k left join lateral (select p.id, p.type, p.attempts from {schema}outbox_parked p
		where p.key_hash = k.key_hash and not p.alone order by p.id limit 1) h on true
	where k.state = 'parked'
	union all
	select null, p.tenant, p.topic, p.key, true, p.id, p.type,
		case when p.attempts > 0 then 'refused' else 'behind' end, p.code, p.reason, p.parked_at
	from {schema}outbox_parked p where p.alone and not p.releasing) u
where ($1::text is null or u.tenant = $1) and ($2::text = '' or u.topic = $2) and ($3::text is null or u.type = $3)
	and ($4::text is null or u.code = $4) and ($5::text[] = '{}' or u.kind = any ($5))
	and ($6::timestamptz is null or u.at >= $6) and ($7::timestamptz is null or u.at <= $7)
order by u.at, u.id limit $9::bigint`

	HeldCounts = `-- relay: held counts
select topic, partition, count(*), count(distinct lane), min(held_at), min(created_at), count(*) filter (where sent)
from {schema}outbox_held group by topic, partition order by topic, partition`

	IdleTimeout = `-- relay: idle timeout
select set_config('idle_in_transaction_session_timeout', $1, true)`

	LockParked = `-- relay: lock parked
select lane from {schema}outbox_lane where lane = (select lane from {schema}outbox_parked where id + 0 = $1 limit 1)
	for update`

	LockKey = `-- relay: lock key
select lane from {schema}outbox_lane where lane = (select lane from {schema}outbox_parked_key
	where key_hash = sha256(replace($2 || '/' || octet_length($1)::text || '/' || $1 || $3, e'\\', e'\\\\')::bytea))
	for update`

	EditParked = `-- relay: edit parked
update {schema}outbox_parked set payload = case when $3 then $4::bytea else payload end,
	headers = case when $5 then $6::jsonb else headers end, content_type = coalesce($7::text, content_type)
where lane = $1 and id = $2`

	KeyList = `-- relay: list of a key
select coalesce(min(p.id), 0), count(p.id), k.state = 'releasing'
from {schema}outbox_parked_key k left join {schema}outbox_parked p on p.key_hash = k.key_hash and not p.alone
where k.key_hash = sha256(replace($2 || '/' || octet_length($1)::text || '/' || $1 || $3, e'\\', e'\\\\')::bytea)
group by k.state`

	ReleaseKey = `-- relay: release key
update {schema}outbox_parked_key set state = 'releasing', since = clock_timestamp()
where key_hash = sha256(replace($2 || '/' || octet_length($1)::text || '/' || $1 || $3, e'\\', e'\\\\')::bytea)
	and state = 'parked'
returning (select count(*) from {schema}outbox_parked p where p.key_hash = outbox_parked_key.key_hash and not p.alone)`

	// Held events of a parked key join its list: at most as many at once as count and bytes allow.
	Rejoin = `-- relay: rejoin
with k as materialized (
	select p.key_hash, p.id from {schema}outbox_parked p
	where p.key_hash = sha256(replace($2 || '/' || octet_length($1)::text || '/' || $1 || $3, e'\\', e'\\\\')::bytea)
		and not p.alone
	order by p.id limit 1
), unheld as (
	delete from {schema}outbox_held h where h.ctid = any (array(
		select s.row from (
			select s.*, sum(s.size) over (order by s.id rows unbounded preceding) as bytes
			from k cross join lateral (
				select h.ctid as row, h.id, coalesce(octet_length(h.payload), 0) + coalesce(pg_column_size(h.headers),
					0) as size
				from {schema}outbox_held h
				where h.key_hash = k.key_hash and h.key <> '' and h.id > k.id
				order by h.id
				limit $4) s) s
		where s.bytes <= $5 or s.bytes = s.size))
	returning h.*
), put as (
	insert into {schema}outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic,
		key, type, content_type, headers, payload, event_time, created_at)
	select lane, id, false, sent or maybe, 0, message_id, source, tenant, topic, key, type, content_type, headers,
		payload, event_time, created_at
	from unheld
)
select count(*) from unheld`

	ReleaseEvent = `-- relay: release event
update {schema}outbox_parked set releasing = true where lane = $1 and id = $2 and alone and not releasing`

	// An event in the journal may be in flight.
	DiscardEvent = `-- relay: discard event
delete from {schema}outbox_parked p where p.lane = $1 and p.id = $2
returning p.maybe_published or exists (select from {schema}outbox_claim c where c.lane = p.lane and p.id = any (c.ids))`

	DiscardKey = `-- relay: discard key
with gone as (
	delete from {schema}outbox_parked p
	where p.key_hash = sha256(replace($2 || '/' || octet_length($1)::text || '/' || $1 || $3, e'\\', e'\\\\')::bytea)
		and not p.alone
	returning p.maybe_published or exists (select from {schema}outbox_claim c where c.lane = p.lane
		and p.id = any (c.ids)) as maybe
)
select count(*), count(*) filter (where maybe) from gone`

	// A list that a discard has emptied blocks no event any more.
	UnmarkEmpty = `-- relay: unmark empty
delete from {schema}outbox_parked_key k where k.lane = $1
	and k.key_hash = sha256(replace($3 || '/' || octet_length($2)::text || '/' || $2 || $4, e'\\', e'\\\\')::bytea)
	and not exists (select from {schema}outbox_parked p where p.key_hash = k.key_hash and not p.alone)`

	Audit = `-- relay: audit
insert into {schema}outbox_audit (operator, action, message_id, tenant, topic, reason, detail)
	values ($1, $2, $3, $4, $5, $6, $7)`

	MayChange = `-- relay: may change
select current_setting('transaction_read_only') = 'off' and has_table_privilege('{schema}outbox_audit', 'insert')`

	AuditLog = `-- relay: audit log
select at, operator, action, reason, '', message_id, coalesce(tenant, ''), coalesce(topic, ''),
	coalesce(detail ->> 'key', ''), detail
from {schema}outbox_audit order by id desc limit $1`

	// Of the last actions: an older acknowledgement is forgotten, and its finding is seen again.
	Acknowledged = `-- relay: acknowledged
select * from (
	select distinct on (1, 2) detail ->> 'check', detail ->> 'found', operator, reason,
		(detail ->> 'until')::timestamptz as until
	from (select * from {schema}outbox_audit order by id desc limit 10000) a where action = $1
	order by 1, 2, id desc
) a where until > clock_timestamp()`
)
