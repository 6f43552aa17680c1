package migrations

const (
	// Retried, because a waiting statement would hold a snapshot, for which a CREATE INDEX CONCURRENTLY of the lock's
	// holder would wait.
	queryLock = `-- migrations: lock
select pg_try_advisory_lock(hashtextextended('effectonce_migration ' || $1::text, 0))`

	querySession = `-- migrations: session
select coalesce(current_schema(), ''), current_setting('search_path'), pg_backend_pid(), current_user`

	querySchema = `-- migrations: schema
select exists (select from pg_namespace where nspname = $1)`

	queryCreateSchema = `-- migrations: create schema
create schema {schema}`

	queryMayCreate = `-- migrations: may create
select has_schema_privilege($1, 'usage'), has_schema_privilege($1, 'create')`

	querySetLockTimeout = `-- migrations: set lock time-out
select set_config('lock_timeout', $1, false), set_config('statement_timeout', '0', false)`

	// The name is resolved as in any query: through the search_path if no schema is given.
	queryFind = `-- migrations: find
select n.nspname, c.relkind::text, array(
		select a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
		from pg_attribute a
		where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
		order by a.attname)
	from pg_class c
	join pg_namespace n on n.oid = c.relnamespace
	where c.oid = to_regclass($1)`

	queryVersions = `-- migrations: versions
select version_id, max(tstamp) from {schema}effectonce_migration where version_id > 0 group by version_id`

	queryOldest = `-- migrations: oldest binaries
select substring(obj_description(c.oid, 'pg_class') from '^effectonce: binaries from ([1-9][0-9]{4}) on$')::bigint
	from pg_class c
	where c.relnamespace = to_regnamespace(quote_ident($1)) and c.relkind in ('r', 'p')
		and obj_description(c.oid, 'pg_class') ~ '^effectonce: binaries from [1-9][0-9]{4} on$'`

	queryTaken = `-- migrations: taken
select c.relname
	from pg_class c
	join pg_namespace n on n.oid = c.relnamespace
	where n.nspname = $1 and c.relname = any ($2)
	order by c.relname`
)
