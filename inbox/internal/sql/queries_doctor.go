package sql

// Statements of Diagnose, in addition to the days. The rights come first, since reading them needs no right.
const MissingRights = `-- inbox: missing rights
select 'table ' || n.name || ': ' || n.want from unnest($1::text[], $2::text[]) n (name, want)
where not has_table_privilege(to_regclass('{schema}' || n.name), n.want)
union
select 'table ' || n.name || ': bypassrls, as row-level security is enabled'
from unnest($1::text[]) n (name) where row_security_active(to_regclass('{schema}' || n.name))
union all select 'function inbox_server(): execute'
where not has_function_privilege(to_regprocedure('{schema}inbox_server()'), 'execute') order by 1`

const ByStart = `-- inbox: by start
select timeline like 'started-%' from {schema}inbox_server()`

// A retired consumer is left out, unless one of its workers goes on.
const Diagnose = `-- inbox: diagnose
select c.consumer_name,
	(select count(*) from {schema}inbox_parked p where p.consumer_name = c.consumer_name and p.kind <> 'quarantined'),
	(select count(*) from {schema}inbox_parked p where p.consumer_name = c.consumer_name and p.kind = 'quarantined'),
	(select count(*) from {schema}inbox_parked_key k where k.consumer_name = c.consumer_name),
	(select count(*) from {schema}inbox_parked_key k where k.consumer_name = c.consumer_name and k.state = 'releasing')
		+ (select count(*) from {schema}inbox_parked p where p.consumer_name = c.consumer_name and p.key_hash is null
			and p.state = 'releasing')
from {schema}inbox_consumer c where c.retired_at is null or exists (select from {schema}inbox_progress p
	where p.consumer_name = c.consumer_name and p.updated_at > c.retired_at) order by c.consumer_name`
