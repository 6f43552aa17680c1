package pgstore

// It uses the index of unfinished keys.
const sqlStuck = `-- pgstore: list stuck keys
select tenant, operation, key from {schema}idempotency_key where state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null
	limit $1::bigint`
