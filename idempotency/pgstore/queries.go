package pgstore

// All SQL on the table is in the queries files of this package, or in a migration. {schema} is the prefix that pgschema
// makes. Durations are parameters in microseconds, added to clock_timestamp(): no host's clock decides anything.
//
// Every write compares, in its own WHERE clause, the holder's fence and token, and the state and lease that it depends
// on. A fence is never drawn twice. Commits are synchronous: otherwise a crash could undo a claim whose provider call
// has been sent.

// It returns the key's row, or inserts one. The insert waits for a transaction of InTx that holds the key's lock or has
// inserted its row. When that one commits meanwhile, its row is not in this statement's snapshot: nothing is returned,
// and the statement runs again.
const sqlClaim = `-- pgstore: claim
with known as materialized (
	select case when state in ('COMPLETED', 'FAILED_REPLAYABLE') and body_until <= clock_timestamp() then 'EXPIRED'
		else state end as state,
		coalesce(forget_at <= clock_timestamp(), false) as forgotten, fingerprint_version, fingerprint, fence, token,
		coalesce((extract(epoch from lease_until - clock_timestamp()) * 1000000)::bigint, 0) as lease_left,
		(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint as age,
		attempts, reason, state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null as stuck, stage, steps, input,
		keep_body, keep_key,
		finished_at, code, schema_version, failure, resource, header, body
	from {schema}idempotency_key where tenant = $1::text and operation = $2::text and key = $3::text
), made as (
	insert into {schema}idempotency_key (tenant, operation, key, state, fingerprint_version, fingerprint, fence, token,
		lease_until, due_at, input, keep_body, keep_key)
	select $1::text, $2::text, $3::text, 'IN_PROGRESS', $4::smallint, $5::bytea,
		nextval('{schema}idempotency_fence'::regclass), $6::text, t.until, t.until, $8::bytea, $11::bigint, $12::bigint
	from (select clock_timestamp() + $7::bigint * interval '1 microsecond' as until,
		set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'),
			true) as synchronous,
		case when set_config('lock_timeout', $9::text, true) <> '' then pg_advisory_xact_lock(
			$10::bigint # '{schema}idempotency_key'::regclass::oid::bigint)::text end as locked) t
	where not exists (select from known) and t.synchronous <> '' and t.locked = ''
	on conflict do nothing
	returning fence
)
select true, fence, '', false, 0::smallint, null::bytea, '', 0::bigint, 0::bigint, 0, '', false, '', null::jsonb,
	null::bytea, null::bigint, null::bigint, null::timestamptz, 0, 0, '', '', null::jsonb, null::bytea from made
union all
select false, fence, state, forgotten, fingerprint_version, fingerprint, token, lease_left, age, attempts, reason,
	stuck, stage, steps, input, keep_body, keep_key, finished_at, code, schema_version, failure, resource, header,
	body from known`

// The columns are those of claim.
const sqlGet = `-- pgstore: get
select false, fence, case when state in ('COMPLETED', 'FAILED_REPLAYABLE')
	and body_until <= clock_timestamp() then 'EXPIRED' else state end,
	coalesce(forget_at <= clock_timestamp(), false), fingerprint_version, fingerprint, token,
	coalesce((extract(epoch from lease_until - clock_timestamp()) * 1000000)::bigint, 0),
	(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint,
	attempts, reason, state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null, stage, steps, input,
	keep_body, keep_key,
	finished_at, code, schema_version, failure, resource, header, body
from {schema}idempotency_key where tenant = $1::text and operation = $2::text and key = $3::text`

// The same claim again, after a lost reply. The columns of this and the next three are those of claim.
const sqlRegrant = `-- pgstore: claim again
update {schema}idempotency_key set lease_until = t.until, due_at = t.until
from (select clock_timestamp() + $6::bigint * interval '1 microsecond' as until) t
where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
	and state = 'IN_PROGRESS'
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true) <> '',
	fence, state, false, fingerprint_version, fingerprint, token,
	coalesce((extract(epoch from lease_until - clock_timestamp()) * 1000000)::bigint, 0),
	(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint,
	attempts, reason, false, stage, steps, input, keep_body, keep_key,
	finished_at, code, schema_version, failure, resource, header, body`

// For work that may run again. Saved progress stays.
const sqlTakeOver = `-- pgstore: take over
update {schema}idempotency_key set state = 'IN_PROGRESS', fence = greatest(fence + 1,
	nextval('{schema}idempotency_fence'::regclass)), token = $6::text, lease_until = t.until, due_at = t.until
from (select clock_timestamp() + $7::bigint * interval '1 microsecond' as until) t
where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
	and (state = 'IN_PROGRESS' and lease_until <= clock_timestamp()
		or state = 'UNKNOWN_REQUIRES_RECOVERY' and (lease_until is null or lease_until <= clock_timestamp()))
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true) <> '',
	fence, state, false, fingerprint_version, fingerprint, token,
	coalesce((extract(epoch from lease_until - clock_timestamp()) * 1000000)::bigint, 0),
	(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint,
	attempts, reason, false, stage, steps, input, keep_body, keep_key,
	finished_at, code, schema_version, failure, resource, header, body`

// The key is due since the end of the lease, which stays: recovery's grace counts from it.
const sqlExpireLease = `-- pgstore: expire a lease
update {schema}idempotency_key set state = 'UNKNOWN_REQUIRES_RECOVERY'
where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
	and state = 'IN_PROGRESS' and lease_until <= clock_timestamp()
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true) <> '',
	fence, state, false, fingerprint_version, fingerprint, token,
	coalesce((extract(epoch from lease_until - clock_timestamp()) * 1000000)::bigint, 0),
	(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint,
	attempts, reason, false, stage, steps, input, keep_body, keep_key,
	finished_at, code, schema_version, failure, resource, header, body`

// An overdue tombstone counts as no row, swept or not.
const sqlClaimTombstone = `-- pgstore: claim over a tombstone
update {schema}idempotency_key set state = 'IN_PROGRESS', fence = greatest(fence + 1,
	nextval('{schema}idempotency_fence'::regclass)), token = $6::text, lease_until = t.until, due_at = t.until,
	fingerprint_version = $8::smallint, fingerprint = $9::bytea, input = $10::bytea,
	keep_body = $11::bigint, keep_key = $12::bigint,
	created_at = clock_timestamp(), attempts = 0, reason = '', stage = 'RECEIVED', steps = null,
	finished_at = null, body_until = null, forget_at = null, code = 0, schema_version = 0, failure = '', resource = '',
	header = null, body = null
from (select clock_timestamp() + $7::bigint * interval '1 microsecond' as until) t
where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
	and state in ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED') and forget_at <= clock_timestamp()
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true) <> '',
	fence, state, false, fingerprint_version, fingerprint, token,
	coalesce((extract(epoch from lease_until - clock_timestamp()) * 1000000)::bigint, 0),
	(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint,
	attempts, reason, false, stage, steps, input, keep_body, keep_key,
	finished_at, code, schema_version, failure, resource, header, body`

// The writes of the key's holder return whether they wrote, the state that they found otherwise, and whether an earlier
// copy of the request has been written already.

const sqlExtend = `-- pgstore: extend
with wrote as (
	update {schema}idempotency_key set lease_until = t.until, due_at = t.until
	from (select clock_timestamp() + $6::bigint * interval '1 microsecond' as until) t
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and (state = 'IN_PROGRESS' or state = 'UNKNOWN_REQUIRES_RECOVERY' and lease_until > clock_timestamp())
	returning true
)
select exists (select from wrote), '', false`

// A save that arrives after a later one of the same store counts as written and replaced, which the last column says.
const sqlSave = `-- pgstore: save
with wrote as (
	update {schema}idempotency_key set stage = $6::text, steps = $7::jsonb, saved_by = $8::text, saved_seq = $9::bigint
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') and lease_until > clock_timestamp()
		and (saved_by is distinct from $8::text or saved_seq <= $9::bigint)
	returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
)
select exists (select from wrote), '', exists (select from {schema}idempotency_key
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') and lease_until > clock_timestamp()
		and saved_by = $8::text and saved_seq > $9::bigint)`

const sqlFinish = `-- pgstore: finish
with wrote as (
	update {schema}idempotency_key set state = case when $8::text = '' then 'COMPLETED' else 'FAILED_REPLAYABLE' end,
		lease_until = null, due_at = null, input = null, reason = '', finished_at = t.at, code = $6::integer,
		schema_version = $7::integer, failure = $8::text, resource = $9::text, header = $10::jsonb, body = $11::bytea,
		body_until = t.at + $12::bigint * interval '1 microsecond',
		forget_at = t.at + $13::bigint * interval '1 microsecond'
	from (select clock_timestamp() as at) t
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
	returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
)
select exists (select from wrote), coalesce((select state from {schema}idempotency_key where tenant = $1::text
	and operation = $2::text and key = $3::text
	and fence = $4::bigint and token = $5::text and (forget_at is null or forget_at > clock_timestamp())), ''), false`

const sqlRelease = `-- pgstore: release
with wrote as (
	delete from {schema}idempotency_key
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY')
	returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
)
select exists (select from wrote), '', not exists (select from {schema}idempotency_key
	where tenant = $1::text and operation = $2::text and key = $3::text and (forget_at is null
		or forget_at > clock_timestamp()))`

// The last column: the key is stuck already.
const sqlMarkUnknown = `-- pgstore: mark unknown
with wrote as (
	update {schema}idempotency_key set state = 'UNKNOWN_REQUIRES_RECOVERY', lease_until = null, reason = $6::text,
		due_at = clock_timestamp() + $7::bigint * interval '1 microsecond'
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY') and due_at is not null
	returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
)
select exists (select from wrote), '', exists (select from {schema}idempotency_key
	where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
		and state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null)`
