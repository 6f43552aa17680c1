package pgstore

// Statements of transactions that write the key's row once, with the result, in the transaction of the effect. Until
// then an advisory lock makes other callers wait for the result instead of working in vain. The primary key alone
// ensures that there is one effect.

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

// The id of a key's lock is one for all stores of a table, however they name its schema.
//
// get is sent after it and has a snapshot of its own, so it sees the commit of the lock's last holder. The mark
// effectonce.key ends with the transaction, so it shows whether the handler has ended that and begun another.
const sqlTryLock = `-- pgstore: lock a key
select pg_try_advisory_xact_lock($1::bigint # '{schema}idempotency_key'::regclass::oid::bigint),
	set_config('effectonce.key', 'held', true)`

// A shared lock does not keep two of these from each other; an InTx that meets it waits for the end of this statement.
const sqlIsLocked = `-- pgstore: is a key locked
select not pg_try_advisory_xact_lock_shared($1::bigint # '{schema}idempotency_key'::regclass::oid::bigint)`

const sqlMark = `-- pgstore: mark a transaction
select set_config('effectonce.key', 'held', true)`

// It divides by zero in a transaction without the mark.
const sqlCheckMark = `-- pgstore: find the mark
select 1 / case current_setting('effectonce.key', true) when 'held' then 1 else 0 end`

// The lock_timeout applies to this wait alone; afterwards the former one is restored.
const sqlAwaitLock = `-- pgstore: await a key
with bound as materialized (select current_setting('lock_timeout') as had, set_config('lock_timeout', $2::text,
	true) as now),
	locked as materialized (
		select had, pg_advisory_xact_lock($1::bigint # '{schema}idempotency_key'::regclass::oid::bigint)::text as got
		from bound where now <> ''
	)
select set_config('lock_timeout', had, true) from locked where got = ''`

// An overdue tombstone counts as no row, swept or not.
const sqlDeleteTombstone = `-- pgstore: delete a tombstone
delete from {schema}idempotency_key
where tenant = $1::text and operation = $2::text and key = $3::text and state in ('COMPLETED', 'FAILED_REPLAYABLE',
	'EXPIRED') and forget_at <= clock_timestamp()`

// It travels with COMMIT, so whatever forbids the COMMIT must be an error, which aborts the transaction: a unique
// violation when another transaction has inserted the key, a division by zero when the mark is gone.
const sqlInsertResult = `-- pgstore: write a result
insert into {schema}idempotency_key (tenant, operation, key, state, fingerprint_version, fingerprint, fence, token,
	stage, code, schema_version, failure, resource, header, body, created_at, finished_at, body_until, forget_at)
select $1::text, $2::text, $3::text, case when $9::text = '' then 'COMPLETED' else 'FAILED_REPLAYABLE' end,
	$4::smallint, $5::bytea,
	1 / case current_setting('effectonce.key', true) when 'held' then 1 else 0 end - 1, $6::text, 'COMPLETED',
	$7::integer, $8::integer, $9::text, $10::text, $11::jsonb, $12::bytea,
	t.at, t.at, t.at + $13::bigint * interval '1 microsecond', t.at + $14::bigint * interval '1 microsecond'
from (select clock_timestamp() as at) t
returning finished_at`
