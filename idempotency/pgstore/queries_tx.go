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

// The row is in when it returns something; a transaction that inserts the same key is waited for, and then nothing comes back. That wait has a
// bound of its own: lock_timeout is put back when the row is in.
const sqlClaimTx = `-- pgstore: claim in a transaction
insert into {schema}idempotency_key (tenant, operation, key, state, fingerprint_version, fingerprint, fence, token, stage, finished_at, body_until, forget_at)
select $1::text, $2::text, $3::text, 'COMPLETED', $4::smallint, $5::bytea, 0, $6::text, 'COMPLETED', t.at,
	t.at + $8::bigint * interval '1 microsecond', t.at + $9::bigint * interval '1 microsecond'
from (select clock_timestamp() as at, set_config('effectonce.lock_timeout', current_setting('lock_timeout'), true) as had,
	set_config('lock_timeout', $7::text, true) as waits) t
where t.had <> '' and t.waits <> ''
on conflict do nothing
returning set_config('lock_timeout', current_setting('effectonce.lock_timeout'), true)`

// Sent behind the claim, with a snapshot of its own: what was waited for is seen. A row that the claim has just made is left out, unless that
// was in a savepoint. The columns are those of get.
const sqlKnownTx = `-- pgstore: what is known in a transaction
select false, fence, case when state in ('COMPLETED', 'FAILED_REPLAYABLE') and body_until <= clock_timestamp() then 'EXPIRED' else state end,
	coalesce(forget_at <= clock_timestamp(), false), fingerprint_version, fingerprint, token,
	coalesce((extract(epoch from lease_until - clock_timestamp()) * 1000000)::bigint, 0),
	(extract(epoch from clock_timestamp() - created_at) * 1000000)::bigint,
	attempts, reason, state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null, stage, steps, input,
	finished_at, code, schema_version, failure, resource, header, body
from {schema}idempotency_key where tenant = $1::text and operation = $2::text and key = $3::text
	and xmin is distinct from pg_current_xact_id_if_assigned()::xid`

// A tombstone that nobody has swept is as nothing.
const sqlRegainTx = `-- pgstore: claim over a tombstone in a transaction
update {schema}idempotency_key set state = 'COMPLETED', token = $6::text, fingerprint_version = $7::smallint, fingerprint = $8::bytea,
	created_at = t.at, finished_at = t.at, attempts = 0, reason = '', stage = 'COMPLETED', steps = null,
	body_until = t.at + $9::bigint * interval '1 microsecond', forget_at = t.at + $10::bigint * interval '1 microsecond',
	code = 0, schema_version = 0, failure = '', resource = '', header = null, body = null
from (select clock_timestamp() as at) t
where tenant = $1::text and operation = $2::text and key = $3::text and fence = $4::bigint and token = $5::text
	and state in ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED') and forget_at <= clock_timestamp()
returning set_config('lock_timeout', current_setting('effectonce.lock_timeout'), true)`

const sqlFinishTx = `-- pgstore: finish in a transaction
update {schema}idempotency_key set state = case when $7::text = '' then 'COMPLETED' else 'FAILED_REPLAYABLE' end,
	finished_at = clock_timestamp(), code = $5::integer, schema_version = $6::integer, failure = $7::text, resource = $8::text,
	header = $9::jsonb, body = $10::bytea
where tenant = $1::text and operation = $2::text and key = $3::text and token = $4::text
returning finished_at`
