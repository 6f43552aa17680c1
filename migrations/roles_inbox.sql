
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

-- Everybody may by default; this is for databases where somebody took that back, and then needs a superuser.
do $$ declare f regprocedure; begin
	for f in select p.oid::regprocedure from pg_proc p where p.proname = 'pg_logical_emit_message' and p.proargtypes[1] = 'text'::regtype
		and p.proargtypes[2] = 'text'::regtype and not has_function_privilege('{role}_inbox', p.oid, 'execute') loop
		execute format('grant execute on function %s to {role}_inbox', f);
	end loop;
	foreach f in array array['pg_control_system()', 'pg_current_wal_lsn()', 'pg_walfile_name(pg_lsn)']::regprocedure[] loop
		if not has_function_privilege('{role}_inbox', f::oid, 'execute') then
			execute format('grant execute on function %s to {role}_inbox', f);
		end if;
	end loop;
end $$;

-- `relay inbox maintain`, and inbox.Config.MaintenanceDB: it makes and drops days, which only their owner may. So
-- inbox_message and its days become its own, and the owner they had becomes a member, to go on migrating them.
grant select on effectonce_migration to {role}_inbox_maintainer;
grant select, update on inbox_days to {role}_inbox_maintainer;
grant select on inbox_consumer, inbox_message to {role}_inbox_maintainer;
-- It makes the days of what operators released, too.
grant select (consumer_name, id, message_id, state) on inbox_parked to {role}_inbox_maintainer;
grant select, delete on inbox_message_any to {role}_inbox_maintainer;
do $$ declare t regclass; who name; begin
	execute format('grant create on schema %I to {role}_inbox_maintainer', current_schema());
	for who in select r.rolname from pg_roles r where not r.rolsuper and r.rolname <> '{role}_inbox_maintainer'
		and (r.rolname = current_user or r.oid = (select c.relowner from pg_class c where c.oid = 'inbox_message'::regclass)) loop
		execute format('grant {role}_inbox_maintainer to %I', who);
	end loop;
	for t in select 'inbox_message'::regclass union all select inhrelid::regclass from pg_inherits where inhparent = 'inbox_message'::regclass loop
		if (select relowner from pg_class where oid = t) <> '{role}_inbox_maintainer'::regrole then
			execute format('alter table %s owner to {role}_inbox_maintainer', t);
		end if;
	end loop;
end $$;
