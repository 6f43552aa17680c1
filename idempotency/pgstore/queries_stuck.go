package pgstore

// By the index of what is open.
const sqlStuck = `-- pgstore: what a person has to look at
select tenant, operation, key from {schema}idempotency_key where state = 'UNKNOWN_REQUIRES_RECOVERY' and due_at is null
	limit $1::bigint`
