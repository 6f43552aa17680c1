package operator

// A stuck operation is UNKNOWN_REQUIRES_RECOVERY without a time at which recovery takes it. Lists read the index of
// what is open. Every change takes a new fence and token, as an owner does: whoever had the key before writes nothing
// to it any more. Its row of the audit is part of the same statement.

const sqlStuck = `-- pgstore: stuck operations
select tenant, operation, key, state, stage, true, attempts,
	(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint, reason, steps, due_at, code, failure,
	resource, finished_at
from (select * from {schema}idempotency_key where state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null
	and ($1::text = '' or operation = $1::text) limit $2::bigint) k
order by created_at, tenant, operation, key`

const sqlUnknown = `-- pgstore: operations that recovery has
select tenant, operation, key, state, stage, false, attempts,
	(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint, reason, steps, due_at, code, failure,
	resource, finished_at
from {schema}idempotency_key where state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is not null
	and ($1::text = '' or operation = $1::text)
order by due_at limit $2::bigint`

// The counts end at the limit.
const sqlCount = `-- pgstore: count open operations
select (select count(*) from (select from {schema}idempotency_key where state = 'UNKNOWN_REQUIRES_RECOVERY'
		and due_at is null limit $1::bigint) s),
	count(*) filter (where state <> 'IN_PROGRESS'), count(*) filter (where state = 'IN_PROGRESS'),
	coalesce((extract(epoch from clock_timestamp() - min(created_at) filter (where state = 'IN_PROGRESS')) *
		1000000)::bigint, 0),
	count(*) filter (where due_at < clock_timestamp() - interval '2 min')
from (select state, due_at, created_at from {schema}idempotency_key
	where state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') and due_at is not null
	order by due_at limit $1::bigint) o`

const sqlRetry = `-- pgstore: retry stuck operations
with again as (
	update {schema}idempotency_key set fence = greatest(fence + 1, nextval('{schema}idempotency_fence'::regclass)),
		token = $4::text, reason = $5::text, due_at = clock_timestamp()
	where state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null and operation = $1::text
		and ($2::text is null or tenant = $2::text) and ($3::text is null or key = $3::text)
	returning tenant, operation, key, attempts,
		set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
), noted as (
	insert into {schema}idempotency_audit (operator, action, tenant, operation, key, reason, detail)
	select $6::text, 'retry', tenant, operation, key, $7::text, jsonb_build_object('attempts', attempts) from again
)
select count(*) from again`

const sqlComplete = `-- pgstore: complete a stuck operation
with ended as (
	update {schema}idempotency_key set state = case when $8::text = '' then 'COMPLETED' else 'FAILED_REPLAYABLE' end,
		fence = greatest(fence + 1, nextval('{schema}idempotency_fence'::regclass)), token = $4::text,
		lease_until = null, due_at = null, input = null, reason = '', finished_at = t.at, code = $6::integer,
		schema_version = $7::integer, failure = $8::text, resource = $9::text, header = $10::jsonb, body = $11::bytea,
		body_until = t.at + keep_body * interval '1 microsecond',
		forget_at = t.at + keep_key * interval '1 microsecond'
	from (select clock_timestamp() as at) t
	where tenant = $1::text and operation = $2::text and key = $3::text and state = 'UNKNOWN_REQUIRES_RECOVERY'
		and due_at is null
	returning tenant, operation, key, code, failure, resource,
		set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
), noted as (
	insert into {schema}idempotency_audit (operator, action, tenant, operation, key, reason, detail)
	select $5::text, 'complete', tenant, operation, key, $12::text, jsonb_build_object('code', code, 'failure', failure,
		'resource', resource) from ended
)
select count(*) from ended`

const sqlFree = `-- pgstore: free a stuck key
with freed as (
	delete from {schema}idempotency_key
	where tenant = $1::text and operation = $2::text and key = $3::text and state = 'UNKNOWN_REQUIRES_RECOVERY'
		and due_at is null
	returning tenant, operation, key, stage,
		set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
), noted as (
	insert into {schema}idempotency_audit (operator, action, tenant, operation, key, reason, detail)
	select $4::text, 'free', tenant, operation, key, $5::text, jsonb_build_object('stage', stage) from freed
)
select count(*) from freed`

// The primary key begins with tenant and operation: the pairs of them are stepped through, and the key is looked up for
// each. The limit keeps the planner from reading all keys instead.
const sqlFind = `-- pgstore: find a key
with recursive pair as (
	(select tenant, operation, 1 as n from {schema}idempotency_key order by tenant, operation limit 1)
	union all
	select f.tenant, f.operation, p.n + 1 from pair p cross join lateral (
		select k.tenant, k.operation from {schema}idempotency_key k
		where (k.tenant, k.operation) > (p.tenant, p.operation) order by k.tenant, k.operation limit 1) f
	where p.n < $2::bigint
)
select p.n, k.tenant is not null, coalesce(k.tenant, ''), coalesce(k.operation, ''), coalesce(k.key, ''),
	coalesce(k.state, ''), coalesce(k.stage, ''),
	coalesce(k.state = 'UNKNOWN_REQUIRES_RECOVERY' and k.due_at is null, false), coalesce(k.attempts, 0),
	coalesce((extract(epoch from clock_timestamp() - k.created_at) * 1000000)::bigint, 0), coalesce(k.reason, ''),
	k.steps, k.due_at, coalesce(k.code, 0), coalesce(k.failure, ''), coalesce(k.resource, ''), k.finished_at
from pair p left join lateral (select * from {schema}idempotency_key f
	where f.tenant = p.tenant and f.operation = p.operation and f.key = $1::text limit 1) k on true
where k.tenant is not null or p.n = (select max(n) from pair)`

const sqlAudit = `-- pgstore: audit log
select at, operator, action, reason, tenant, operation, key, detail from {schema}idempotency_audit
order by id desc limit $1::bigint`

const sqlAccess = `-- pgstore: access
select to_regclass('{schema}idempotency_key') is not null,
	current_setting('transaction_read_only') = 'off'
		and coalesce(has_table_privilege(to_regclass('{schema}idempotency_audit'), 'insert'), false)`
