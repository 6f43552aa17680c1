package tables

// SQLTables creates the tables. Producers need INSERT on history_business and INSERT, SELECT, UPDATE on
// history_aggregate; workers INSERT on history_effect and INSERT, SELECT on history_ledger. The columns ord define the
// order of rows whose writers a lock serialises, such as the effects of a key.
const SQLTables = `-- tables: create
create table history_aggregate (
	tenant text not null, key text not null, version bigint not null,
	primary key (tenant, key)
) with (fillfactor = 50);
create table history_business (
	ord bigint generated always as identity (cache 1),
	message_id uuid not null, tenant text not null, topic text not null, key text not null, version bigint not null,
	business text not null, scheduled boolean not null, poison text not null, skipped boolean not null,
	digest bigint not null
);
create table history_effect (
	ord bigint generated always as identity (cache 1),
	consumer text not null, message_id uuid not null, tenant text not null, topic text not null, key text not null,
	version bigint not null, business text not null, record_partition integer not null, record_offset bigint not null,
	pid integer not null default pg_backend_pid(), at timestamptz not null default clock_timestamp()
);
create table history_ledger (
	consumer text not null, business text not null, message_id uuid not null,
	primary key (consumer, business)
)`

// SQLNextVersion returns the next version of an aggregate ($1 tenant, $2 key) under its row lock.
const SQLNextVersion = `-- tables: next version
insert into history_aggregate as a (tenant, key, version) values ($1, $2, 1)
on conflict (tenant, key) do update set version = a.version + 1 returning version`

// SQLRecord inserts a business row. RecordArgs returns its arguments.
const SQLRecord = `-- tables: record
insert into history_business (message_id, tenant, topic, key, version, business, scheduled, poison, skipped, digest)
values ($1::text::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// SQLApply inserts the effect of an event.
const SQLApply = `-- tables: apply
with first as (
	insert into history_ledger (consumer, business, message_id) values ($1, $7, $2::text::uuid)
	on conflict do nothing returning consumer
)
insert into history_effect (consumer, message_id, tenant, topic, key, version, business, record_partition,
	record_offset)
select $1, $2::text::uuid, $3, $4, $5, $6, $7, $8, $9 from first`
