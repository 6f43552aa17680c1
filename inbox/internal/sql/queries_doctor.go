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

// A retired consumer is left out, unless one of its workers goes on. What was parked within two minutes is compared
// with the effects since then: those of ids of the last hour are counted; of others it is only known whether there is
// one.
const Diagnose = `-- inbox: diagnose
select c.consumer_name,
	(select count(*) from {schema}inbox_parked p where p.consumer_name = c.consumer_name and p.kind <> 'quarantined'),
	(select count(*) from {schema}inbox_parked p where p.consumer_name = c.consumer_name and p.kind = 'quarantined'),
	(select count(*) from {schema}inbox_parked_key k where k.consumer_name = c.consumer_name),
	(select count(*) from {schema}inbox_parked_key k where k.consumer_name = c.consumer_name and k.state = 'releasing')
		+ (select count(*) from {schema}inbox_parked p where p.consumer_name = c.consumer_name and p.key_hash is null
			and p.state = 'releasing'),
	coalesce((select extract(epoch from clock_timestamp() - min(k.since)) from {schema}inbox_parked_key k
		where k.consumer_name = c.consumer_name and k.state = 'releasing'), 0)::float8,
	coalesce(r.n, 0)::bigint, coalesce(r.code, ''), coalesce(r.of_code, 0)::bigint,
	case when r.n is null then 0 when c.dedup = 'id' and r.id >= r.hour then
		(select count(*) from (select from {schema}inbox_message m where m.consumer_name = c.consumer_name
			and m.message_id >= r.id and m.processed_at >= r.since limit 1000) m)
	else (select 1000 * count(*) from {schema}inbox_progress e where e.consumer_name = c.consumer_name
		and e.effect_at > r.since) end
from {schema}inbox_consumer c cross join lateral (
	select sum(g.n) as n, (array_agg(g.code order by g.n desc))[1] as code, max(g.n) as of_code, min(g.since) as since,
		(array_agg(g.id order by g.id))[1] as id, (lpad(to_hex((extract(epoch from clock_timestamp()
			- interval '1 hour') * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid as hour
	from (select coalesce(nullif(p.code, ''), k.code, '') as code, count(*) as n, min(p.parked_at) as since,
			(array_agg(p.message_id order by p.message_id))[1] as id
		from (select * from {schema}inbox_parked l where l.consumer_name = c.consumer_name and l.kind <> 'quarantined'
			order by l.id desc limit 1000) p
		left join {schema}inbox_parked_key k on k.consumer_name = p.consumer_name and k.key_hash = p.key_hash
		where p.parked_at > clock_timestamp() - interval '2 min' group by 1) g) r
where c.retired_at is null or exists (select from {schema}inbox_progress p
	where p.consumer_name = c.consumer_name and p.updated_at > c.retired_at) order by c.consumer_name`
