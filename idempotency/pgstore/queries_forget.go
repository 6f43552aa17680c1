package pgstore

// An unfinished key stays: its holder still works on it.
const sqlForgetKey = `-- pgstore: forget a key
delete from {schema}idempotency_key
where tenant = $1::text and operation = $2::text and key = $3::text and state in ('COMPLETED', 'FAILED_REPLAYABLE',
	'EXPIRED')`
