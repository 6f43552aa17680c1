package inbox

// The figures of a Sample. Each count ends at its limit.
const (
	sqlSampleParked = `-- inbox: sample parked
select count(*) filter (where kind <> 'quarantined'), count(*) filter (where kind = 'quarantined'),
	coalesce(extract(epoch from clock_timestamp() - min(parked_at)), 0)::float8
from (select kind, parked_at from {schema}inbox_parked where consumer_name = $1 limit $2) p`

	sqlSampleKeys = `-- inbox: sample keys
select count(*), count(*) filter (where state = 'releasing'), count(*) filter (where at_bound)
from (select state, at_bound from {schema}inbox_parked_key where consumer_name = $1 limit $2) k`

	sqlSampleHalted = `-- inbox: sample halted
select count(*) from {schema}inbox_progress where consumer_name = $1 and halted_at is not null`

	// Counted like sqlDays: days since 1970, UTC, and the attached partitions.
	sqlSampleDays = `-- inbox: sample days
select floor(extract(epoch from clock_timestamp()) / 86400)::integer,
	array(select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = '{schema}inbox_message'::regclass and not i.inhdetachpending order by 1)`
)
