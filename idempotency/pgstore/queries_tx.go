package pgstore

// Statements of transactions that write the key's row beside the effect, once: with its result. Until then an advisory
// lock keeps others away. That is for their sake, who wait for the result and do no work in vain; that there is one
// effect is the primary key's doing.

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

// get is sent behind it, with a snapshot of its own: what the last one who had the lock committed is seen. The mark
// ends with the transaction: a handler that ends it with a statement, and begins another, has lost it.
const sqlLock = `-- pgstore: lock a key
select pg_try_advisory_xact_lock($1::bigint), set_config('effectonce.key', 'held', true)`

const sqlMark = `-- pgstore: mark a transaction
select set_config('effectonce.key', 'held', true)`

// A division by zero says that the transaction is another.
const sqlHeld = `-- pgstore: find the mark
select 1 / case current_setting('effectonce.key', true) when 'held' then 1 else 0 end`

// The wait has a bound of its own, which is taken back when the lock is there.
const sqlAwait = `-- pgstore: await a key
with bound as materialized (select current_setting('lock_timeout') as had, set_config('lock_timeout', $2::text,
	true) as now),
	locked as materialized (select had, pg_advisory_xact_lock($1::bigint)::text as got from bound where now <> '')
select set_config('lock_timeout', had, true) from locked where got = ''`

// A tombstone that nobody has swept is as nothing.
const sqlBury = `-- pgstore: bury a tombstone
delete from {schema}idempotency_key
where tenant = $1::text and operation = $2::text and key = $3::text and state in ('COMPLETED', 'FAILED_REPLAYABLE',
	'EXPIRED') and forget_at <= clock_timestamp()`

// It travels with COMMIT, so a key that somebody has made meanwhile has to be an error, which ends the transaction; and
// so has a mark that is gone, as a division by zero.
const sqlWrite = `-- pgstore: write a result
insert into {schema}idempotency_key (tenant, operation, key, state, fingerprint_version, fingerprint, fence, token,
	stage, code, schema_version, failure, resource, header, body, created_at, finished_at, body_until, forget_at)
select $1::text, $2::text, $3::text, case when $9::text = '' then 'COMPLETED' else 'FAILED_REPLAYABLE' end,
	$4::smallint, $5::bytea,
	1 / case current_setting('effectonce.key', true) when 'held' then 1 else 0 end - 1, $6::text, 'COMPLETED',
	$7::integer, $8::integer, $9::text, $10::text, $11::jsonb, $12::bytea,
	t.at, t.at, t.at + $13::bigint * interval '1 microsecond', t.at + $14::bigint * interval '1 microsecond'
from (select clock_timestamp() as at) t
returning finished_at`
