package audit

// allRows has Postgres refuse to read what row-level security hides rows of. It counts for a transaction; a pipeline
// without a begin is one.
const allRows = `-- audit: all rows
select set_config('row_security', 'off', true)`
