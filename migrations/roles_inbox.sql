
-- Workers, and `relay inbox parked`.
grant select on effectonce_migration to {role}_inbox;
grant select, insert, delete on inbox_message, inbox_message_any to {role}_inbox;
grant select, insert, update on inbox_consumer to {role}_inbox;
grant select on inbox_days to {role}_inbox;
grant select, insert, update, delete on inbox_parked_key, inbox_parked, inbox_progress to {role}_inbox;
grant select, insert, delete on inbox_watermark to {role}_inbox;
grant select, insert, update on inbox_numbering to {role}_inbox;
-- What people did is written and read, and never changed.
grant select, insert on inbox_audit to {role}_inbox;
grant execute on function inbox_server() to {role}_inbox;

-- Everybody may by default; this is for databases where somebody took that back, and then needs a superuser.
do $$ declare f regprocedure; begin
	for f in select p.oid::regprocedure from pg_proc p where p.proname = 'pg_logical_emit_message' and p.proargtypes[1] = 'text'::regtype
		and p.proargtypes[2] = 'text'::regtype and not has_function_privilege('{role}_inbox', p.oid, 'execute') loop
		execute format('grant execute on function %s to {role}_inbox', f);
	end loop;
end $$;

do $$ begin
	if not has_table_privilege('{role}_inbox', 'pg_catalog.pg_locks', 'select') then
		grant select on pg_catalog.pg_locks to {role}_inbox; -- which batch runs
	end if;
end $$;

-- `relay inbox maintain`, and inbox.Config.MaintenanceDB: it makes and drops days through functions of the tables' owner, and
-- owns nothing.
grant select on effectonce_migration to {role}_inbox_maintainer;
grant select, update on inbox_days to {role}_inbox_maintainer;
grant select on inbox_consumer, inbox_message to {role}_inbox_maintainer;
-- It makes the days of what operators released, too.
grant select (consumer_name, id, message_id, state) on inbox_parked to {role}_inbox_maintainer;
grant select, delete on inbox_message_any to {role}_inbox_maintainer;
grant execute on function inbox_make_day(date), inbox_drop_day(date) to {role}_inbox_maintainer;
do $$ declare t regclass; begin
	-- Until 20003 it owned them.
	execute format('revoke create on schema %I from {role}_inbox_maintainer', current_schema());
	for t in select c.oid from pg_class c where c.relnamespace = current_schema()::regnamespace
		and c.relowner = '{role}_inbox_maintainer'::regrole and c.relkind in ('r', 'p') and c.relname like 'inbox\_message%' loop
		execute format('alter table %s owner to %I', t, (select pg_get_userbyid(relowner) from pg_class where oid = 'inbox_message_any'::regclass));
	end loop;
end $$;
