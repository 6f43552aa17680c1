-- +goose Up
-- Days are made and dropped by the tables' owner, through functions, whoever calls them. The maintainer's role must not own the
-- tables itself: who owns a table can give it a trigger, which runs with the rights of whoever inserts.
-- +goose StatementBegin
do $migration$ declare owner name; f regprocedure; begin
	execute replace($make$
create function @schema.inbox_make_day(day date) returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
	name constant text := 'inbox_message_' || to_char(day, 'YYYYMMDD');
	millis constant bigint := (day - date '1970-01-01')::bigint * 86400000;
begin
	-- The lock of all who make days or raise dropped_before. An empty new day below it would forget.
	perform pg_advisory_xact_lock(1701209710, '@schema.inbox_message'::regclass::oid::integer);
	if day < (select dropped_before from @schema.inbox_days) then
		raise exception 'day % was dropped and is never made again', day;
	end if;
	-- LIKE and ATTACH, for PARTITION OF waits behind every open insert and makes all others wait behind itself. Rows live for
	-- weeks and are never updated: vacuum for freezing is all it needs.
	execute format('create table @schema.%I (like @schema.inbox_message including all) with (autovacuum_vacuum_insert_threshold = -1)', name);
	execute format('alter table @schema.inbox_message attach partition @schema.%I for values from (%L) to (%L)', name,
		rpad(lpad(to_hex(millis), 12, '0'), 32, '0')::uuid, rpad(lpad(to_hex(millis + 86400000), 12, '0'), 32, '0')::uuid);
end $$ $make$, '@schema', quote_ident(current_schema()));
	-- A function cannot DETACH CONCURRENTLY, so a day is dropped under a lock that every insert waits behind: it is emptied first, and
	-- the lock is waited for so briefly that nobody notices. False: it is empty, and there was no such moment.
	execute replace($drop$
create function @schema.inbox_drop_day(day date) returns boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
	name constant text := 'inbox_message_' || to_char(day, 'YYYYMMDD');
begin
	if day >= (select dropped_before from @schema.inbox_days) then
		raise exception 'day % is remembered: inbox_days.dropped_before is not above it', day;
	end if;
	if to_regclass(format('@schema.%I', name)) is null then
		return true;
	end if;
	perform set_config('lock_timeout', '100ms', true);
	execute format('truncate @schema.%I', name);
	begin
		execute format('drop table @schema.%I', name);
	exception when lock_not_available then
		return false;
	end;
	return true;
end $$ $drop$, '@schema', quote_ident(current_schema()));
	select pg_get_userbyid(relowner) into owner from pg_class where oid = 'inbox_message_any'::regclass;
	foreach f in array array['inbox_make_day(date)', 'inbox_drop_day(date)']::regprocedure[] loop
		execute format('revoke all on function %s from public', f);
		if owner <> current_user then
			execute format('alter function %s owner to %I', f, owner);
		end if;
	end loop;
end $migration$;
-- +goose StatementEnd
