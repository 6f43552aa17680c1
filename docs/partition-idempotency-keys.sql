-- Hash partitions by tenant for the table of idempotency keys: an option for a table that is hot and large (hundreds of millions
-- of keys, or autovacuum that does not keep up). The store needs no setting; every statement of its own names the tenant, and so
-- goes to one partition. Sweeps and recovery look at all of them.
--
-- Not by time: a key must be unique for ever, and a primary key of a partitioned table contains what it is partitioned by.
-- One tenant with most of the keys is better served by (tenant, key): replace both "hash (tenant)" by "hash (tenant, key)".
--
-- Run it as the owner of the table, in the schema of the table (set search_path), when nobody writes, for it holds an exclusive
-- lock while it copies; best before the first request:
--
--   psql -X -v ON_ERROR_STOP=1 -1 -f partition-idempotency-keys.sql
--
-- Afterwards run `relay migrate --roles --print` again, for grants belong to a table. Later migrations find the table under its name.
set local lock_timeout = '5s';
lock table idempotency_key in access exclusive mode;

alter table idempotency_key rename to idempotency_key_whole;
create table idempotency_key (like idempotency_key_whole including all) partition by hash (tenant);
do $$ begin
	for i in 0..15 loop
		execute format('create table idempotency_key_%s partition of idempotency_key for values with (modulus 16, remainder %s)
			with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
			autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = 5000, autovacuum_analyze_threshold = 5000)', i, i);
	end loop;
	-- What binaries this schema serves stands in the table's comment.
	execute format('comment on table idempotency_key is %L', obj_description('idempotency_key_whole'::regclass));
end $$;
insert into idempotency_key select * from idempotency_key_whole;
drop table idempotency_key_whole;
