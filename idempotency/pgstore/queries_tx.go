package pgstore

// Statements of transactions that hold the key's row beside the effect's. The row is COMPLETED from the start: nobody sees it before
// the COMMIT, and its completion then changes no indexed column.

const sqlBegin = `-- pgstore: begin
begin isolation level read committed`

const sqlSavepoint = `-- pgstore: savepoint
savepoint effectonce_key`

const sqlRollbackTo = `-- pgstore: back to the savepoint
rollback to savepoint effectonce_key`

const sqlCommit = `-- pgstore: commit
commit`

const sqlRollback = `-- pgstore: roll back
rollback`

const sqlAdopt = `-- pgstore: adopt the open transaction`

// As claim. The wait for a transaction that inserts the same key has a bound of its own; afterwards lock_timeout is what it was, for
// the first part of the union runs when the row is in.
const sqlClaimTx = `-- pgstore: claim in a transaction
with known as materialized (
	select case when state in ('COMPLETED', 'FAILED_REPLAYABLE') and body_until <= clock_timestamp() then 'EXPIRED' else state end as state,
		coalesce(forget_at <= clock_timestamp(), false) as forgotten, fingerprint_version, fingerprint, fence, token,
		coalesce((extract(epoch from lease_until - clock_timestamp()) * 1000000)::bigint, 0) as lease_left,
		(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint as age,
		attempts, reason, state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null as stuck, stage, steps, input,
		finished_at, code, schema_version, failure, resource, header, body
	from {schema}idempotency_key where tenant = $1::text and operation = $2::text and key = $3::text
), made as (
	insert into {schema}idempotency_key (tenant, operation, key, state, fingerprint_version, fingerprint, fence, token, stage, finished_at, body_until, forget_at)
	select $1::text, $2::text, $3::text, 'COMPLETED', $4::smallint, $5::bytea, 0, $6::text, 'COMPLETED', t.at,
		t.at + $8::bigint * interval '1 microsecond', t.at + $9::bigint * interval '1 microsecond'
	from (select clock_timestamp() as at, set_config('effectonce.lock_timeout', current_setting('lock_timeout'), true) as had,
		set_config('lock_timeout', $7::text, true) as waits) t
	where not exists (select from known) and t.had <> '' and t.waits <> ''
	on conflict do nothing
	returning fence
)
select set_config('lock_timeout', current_setting('effectonce.lock_timeout'), true) <> '', fence, '', false, 0::smallint, null::bytea, '', 0::bigint, 0::bigint,
	0, '', false, '', null::jsonb, null::bytea, null::timestamptz, 0, 0, '', '', null::jsonb, null::bytea from made
union all
select false, fence, state, forgotten, fingerprint_version, fingerprint, token, lease_left, age, attempts, reason, stuck, stage, steps, input,
	finished_at, code, schema_version, failure, resource, header, body from known`

// A tombstone that nobody has swept is as nothing.
const sqlRegainTx = `-- pgstore: claim over a tombstone in a transaction
update {schema}idempotency_key set state = 'COMPLETED', token = $6::text, fingerprint_version = $7::smallint, fingerprint = $8::bytea,
	created_at = t.at, finished_at = t.at, attempts = 0, reason = '', stage = 'COMPLETED', steps = null,
	body_until = t.at + $9::bigint * interval '1 microsecond', forget_at = t.at + $10::bigint * interval '1 microsecond',
	code = 0, schema_version = 0, failure = '', resource = '', header = null, body = null
from (select clock_timestamp() as at) t
where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
	and state in ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED') and forget_at <= clock_timestamp()`

const sqlFinishTx = `-- pgstore: finish in a transaction
update {schema}idempotency_key set state = case when $7::text = '' then 'COMPLETED' else 'FAILED_REPLAYABLE' end,
	finished_at = clock_timestamp(), code = $5::integer, schema_version = $6::integer, failure = $7::text, resource = $8::text,
	header = $9::jsonb, body = $10::bytea
where tenant = $1::text and operation = $2::text and key = $3::text and token = $4::text
returning finished_at`
