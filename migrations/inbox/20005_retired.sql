-- +goose Up
-- A consumer that is gone keeps its row: its floor says which ids it has known, for the day that it comes back.
alter table inbox_consumer add column retired_at timestamptz; -- its window does not count since; null: it does
-- +goose StatementBegin
create function inbox_consumer_kept() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
	raise exception 'a consumer without its row has forgotten which ids it knows, and would apply events again when it returns'
		using errcode = 'restrict_violation', hint = 'relay inbox retire --consumer ... --reason ... lets the windows of the others rule';
end $$;
-- +goose StatementEnd
create trigger inbox_consumer_kept before delete or truncate on inbox_consumer for each statement execute function inbox_consumer_kept();
