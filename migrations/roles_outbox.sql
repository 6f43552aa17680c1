
-- Producers append, and do nothing else: not even read what they wrote. Without the columns lane, id and created_at, which
-- are the table's own: an id that somebody supplies breaks the order.
grant select on effectonce_migration to {role}_append;
grant insert (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time) on outbox_event to {role}_append;
grant insert (due, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time) on outbox_scheduled to {role}_append;

-- Relays, and `relay status`, `lanes`, `parked` and `doctor`.
grant select on effectonce_migration to {role}_relay;
grant select, delete on outbox_event, outbox_scheduled to {role}_relay;
-- What was scheduled or is replayed enters the outbox as a producer's events do. The event by which a relay proves that it
-- can work, and that it never commits, has an id.
grant insert (id, message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time) on outbox_event to {role}_relay;
grant select, update on outbox_lane, outbox_meta to {role}_relay;
grant select, insert, delete on outbox_claim to {role}_relay;
grant select, insert, update on outbox_topic to {role}_relay;
grant select, insert, update, delete on relay_member, outbox_held, outbox_parked_key, outbox_parked to {role}_relay;
-- Settles write what they published; `relay replay` reads it. Days are made and dropped by the tables' owner:
-- `relay archive maintain`.
grant select, insert on outbox_archive to {role}_relay;
grant usage on sequence outbox_archive_pos_seq to {role}_relay;
grant select, insert, delete on outbox_paused_topic to {role}_relay;
-- Relays that read the WAL. Their login role needs REPLICATION besides, which no grant passes on; with it, it can read every
-- publication of the database.
grant select, insert, update on outbox_wal to {role}_relay;
grant select, insert, update, delete on outbox_streamed to {role}_relay;
-- What people did is written and read, and never changed.
grant select, insert on outbox_audit to {role}_relay;
-- The floor and `relay doctor` read the sequence's last value; they do not draw from it.
grant select on sequence outbox_event_id_seq to {role}_relay;

grant execute on function outbox_server() to {role}_relay;

-- Everybody may by default; this is for databases where somebody took that back, and then needs a superuser.
do $$ begin
	if not has_table_privilege('{role}_relay', 'pg_catalog.pg_locks', 'select') then
		grant select on pg_catalog.pg_locks to {role}_relay;
	end if;
end $$;
