package pgstore

// Statements of recovery and retention. They lock the rows that they select, and compare the same condition again when
// they write.

// A locked row is skipped: its holder is alive and writes it. A row with a lease waits for the grace: its holder, an
// owner or a recoverer, did not end the lease, and its last request may still arrive. The columns are those of claim,
// then the key and due_at.
const sqlRecover = `-- pgstore: recover
with due as materialized (
	select tenant, operation, key, fence, due_at from {schema}idempotency_key
	where state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') and due_at <= clock_timestamp()
		and (lease_until is null or due_at <= clock_timestamp() - $1::bigint * interval '1 microsecond')
		and ($2::text[] is null or operation = any($2::text[]))
	order by due_at limit $3::bigint
	for update skip locked
)
update {schema}idempotency_key k set state = 'UNKNOWN_REQUIRES_RECOVERY', fence = greatest(k.fence + 1,
	nextval('{schema}idempotency_fence'::regclass)), token = $4::text, attempts = k.attempts + 1, lease_until = t.until,
	due_at = t.until
from due d, (select clock_timestamp() + $5::bigint * interval '1 microsecond' as until) t
where k.tenant = d.tenant and k.operation = d.operation and k.key = d.key and k.fence = d.fence and k.due_at = d.due_at
	and k.state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true) <> '',
	k.fence, k.state, false, k.fingerprint_version, k.fingerprint, k.token,
	(extract(epoch from k.lease_until - clock_timestamp()) * 1000000)::bigint,
	(extract(epoch from clock_timestamp() - k.created_at) * 1000000)::bigint,
	k.attempts, k.reason, false, k.stage, k.steps, k.input, k.keep_body, k.keep_key,
	k.finished_at, k.code, k.schema_version, k.failure, k.resource, k.header, k.body,
	k.tenant, k.operation, k.key, (extract(epoch from d.due_at) * 1000000)::bigint`

const sqlPostpone = `-- pgstore: postpone
with wrote as (
	update {schema}idempotency_key set lease_until = null, reason = $6::text,
		due_at = case when $8::boolean then null else clock_timestamp() + $7::bigint * interval '1 microsecond' end
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is not null
	returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
)
select exists (select from wrote), '', exists (select from {schema}idempotency_key
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null)`

const sqlExpireBodies = `-- pgstore: expire bodies
with due as materialized (
	select tenant, operation, key, fence from {schema}idempotency_key
	where coalesce(body_until, forget_at) <= clock_timestamp() and body_until <= clock_timestamp()
		and (forget_at is null or forget_at > clock_timestamp())
	order by coalesce(body_until, forget_at) limit $1::bigint
	for update skip locked
)
update {schema}idempotency_key k set state = 'EXPIRED', header = null, body = null, body_until = null, stage = '',
	steps = null
from due d
where k.tenant = d.tenant and k.operation = d.operation and k.key = d.key and k.fence = d.fence
	and k.state in ('COMPLETED', 'FAILED_REPLAYABLE') and k.body_until <= clock_timestamp()`

const sqlDeleteTombstones = `-- pgstore: delete tombstones
with due as materialized (
	select tenant, operation, key, fence from {schema}idempotency_key
	where coalesce(body_until, forget_at) <= clock_timestamp() and forget_at <= clock_timestamp()
	order by coalesce(body_until, forget_at) limit $1::bigint
	for update skip locked
)
delete from {schema}idempotency_key k using due d
where k.tenant = d.tenant and k.operation = d.operation and k.key = d.key and k.fence = d.fence
	and k.state in ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED') and k.forget_at <= clock_timestamp()`

const sqlMoreOverdue = `-- pgstore: is more overdue
select exists (select from {schema}idempotency_key where coalesce(body_until, forget_at) <= clock_timestamp())`

const sqlStats = `-- pgstore: count unfinished keys
select count(*) filter (where state = 'IN_PROGRESS'), count(*) filter (where state <> 'IN_PROGRESS'),
	count(*) filter (where state <> 'IN_PROGRESS' and due_at is null),
	coalesce((extract(epoch from clock_timestamp() - min(created_at) filter (where state = 'IN_PROGRESS')) *
		1000000)::bigint, 0)
from {schema}idempotency_key where state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')`
