package roles

// grants are each role's privileges on the tables of package tables. {producer}, {worker} and {operator} are users.
const grants = `-- roles: grants
grant select, insert, update on history_aggregate to {producer};
grant insert on history_business to {producer};
grant insert on history_effect to {worker};
grant select on history_effect to {operator};
grant select, insert on history_ledger to {worker};
`

// nextVersions is tables.SQLNextVersion for $2 events. It returns the last version.
const nextVersions = `-- roles: next versions
insert into history_aggregate as a (tenant, key, version) values ('', $1, $2)
on conflict (tenant, key) do update set version = a.version + $2 returning version`

// recordAll is tables.SQLRecord for many events.
const recordAll = `-- roles: record
insert into history_business (message_id, tenant, topic, key, version, business, scheduled, poison, skipped, digest)
select e.id::uuid, e.tenant, e.topic, e.key, e.version, e.business, e.scheduled, e.poison, false, e.digest
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::boolean[], $8::text[],
	$9::bigint[])
	as e (id, tenant, topic, key, version, business, scheduled, poison, digest)`

// applyAll inserts a row for every event whose effect runs, duplicates included.
const applyAll = `-- roles: apply
insert into history_effect (consumer, message_id, tenant, topic, key, version, business, record_partition,
	record_offset)
select $1, e.id::uuid, e.tenant, e.topic, e.key, e.version, e.business, e.partition, e.at
from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::int[], $9::bigint[])
	with ordinality as e (id, tenant, topic, key, version, business, partition, at, i) order by e.i`

// ledgerAll inserts business keys, sorted so that workers do not deadlock.
const ledgerAll = `-- roles: ledger
insert into history_ledger (consumer, business, message_id)
select $1, l.business, l.id::uuid from unnest($2::text[], $3::text[]) as l (business, id) order by l.business
	on conflict do nothing`

const isApplied = `-- roles: is applied
select exists (select from history_effect where consumer = $1 and message_id = $2::uuid)`

const serializationFailure = `-- roles: serialization failure
do $$ begin raise exception 'random failure' using errcode = 'serialization_failure'; end $$`
