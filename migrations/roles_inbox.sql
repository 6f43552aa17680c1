
-- Workers, and `relay inbox parked`.
grant select on effectonce_migration to {role}_inbox;
grant select, insert, delete on inbox_message, inbox_message_any to {role}_inbox;
grant select, insert, update on inbox_consumer to {role}_inbox;
grant select on inbox_days to {role}_inbox;
grant select, insert, update, delete on inbox_parked_key, inbox_parked, inbox_progress to {role}_inbox;
-- What people did is written and read, and never changed.
grant select, insert on inbox_audit to {role}_inbox;

-- `relay inbox maintain`, and inbox.Config.MaintenanceDB: it makes and drops days, which only their owner may. So
-- inbox_message and its days become its own, and who runs this becomes a member, to go on migrating them. A login user of
-- it should act as it, so that new days do not belong to the user:
--   grant {role}_inbox_maintainer to cron; alter role cron set role to '{role}_inbox_maintainer';
grant select on effectonce_migration to {role}_inbox_maintainer;
grant select, update on inbox_days to {role}_inbox_maintainer;
grant select on inbox_consumer, inbox_message to {role}_inbox_maintainer;
grant select, delete on inbox_message_any to {role}_inbox_maintainer;
do $$ declare t regclass; begin
	execute format('grant create on schema %I to {role}_inbox_maintainer', current_schema());
	if not pg_has_role('{role}_inbox_maintainer', 'member') then
		execute format('grant {role}_inbox_maintainer to %I', current_user);
	end if;
	for t in select 'inbox_message'::regclass union all select inhrelid::regclass from pg_inherits where inhparent = 'inbox_message'::regclass loop
		if (select relowner from pg_class where oid = t) <> '{role}_inbox_maintainer'::regrole then
			execute format('alter table %s owner to {role}_inbox_maintainer', t);
		end if;
	end loop;
end $$;
