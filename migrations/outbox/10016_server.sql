-- +goose Up
-- +goose StatementBegin
-- Which server this is, and on which timeline. After a failover or a restore the answer is another one: numbers may have
-- gone back then, and a new numbering begins. It runs with its owner's rights, so that roles need none on what it asks.
-- Where the server refuses its system identifier or its timeline, as some managed ones do, the time of its start stands
-- for them: each restart is another server then, and none is ever taken for one that it is not. A standby is refused.
create function outbox_server(out system bigint, out timeline text, out lsn pg_lsn)
	language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
	begin
		lsn := pg_current_wal_lsn();
		timeline := left(pg_walfile_name(lsn), 8);
		system := (select c.system_identifier from pg_control_system() c);
	exception when others then
		if pg_is_in_recovery() then
			raise;
		end if;
		system := coalesce(system, 0);
		timeline := 'started-' || extract(epoch from pg_postmaster_start_time())::text;
		if to_regproc('aurora_server_id') is not null then
			execute 'select $1 || ''-'' || aurora_server_id()' using timeline into timeline;
		end if;
	end;
end $$;
-- +goose StatementEnd

update outbox_meta m set system_identifier = s.system, timeline = s.timeline from outbox_server() s
	where m.timeline = '';
