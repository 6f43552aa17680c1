package audit

// allRows makes Postgres fail a read of a table in which row-level security hides rows. It lasts for the transaction; a
// pipeline without BEGIN is one transaction.
const allRows = `-- audit: all rows
select set_config('row_security', 'off', true)`
