-- +goose Up
-- Rows that say what was applied are not deleted by hand: without them a duplicate is applied again, and nothing tells. The inbox itself
-- deletes rows of its own transaction, whose xid is this one's or a later savepoint's, and announces any other deletion.
-- +goose StatementBegin
create function inbox_kept() returns trigger language plpgsql as $$ begin
	if current_setting('effectonce.inbox', true) = 'forget' then
		return old;
	end if;
	raise exception 'the rows of % tell which events were applied: without them, duplicates are applied again', tg_table_name
		using errcode = 'restrict_violation', hint = 'Maintenance (relay inbox maintain) drops what is older than the window. '
			'To forget events on purpose, begin the transaction with: set local effectonce.inbox = ''forget''';
end $$;
-- +goose StatementEnd
create trigger inbox_kept before delete on inbox_message for each row when (age(old.xmin) > 0) execute function inbox_kept();
create trigger inbox_kept before delete on inbox_message_any for each row when (age(old.xmin) > 0) execute function inbox_kept();
-- Every move of a mark deletes a row, and must not lock it before. Without version 0, events would be taken for the first of their numbering.
create trigger inbox_kept after delete on inbox_watermark for each row when (old.version = 0) execute function inbox_kept();
create trigger inbox_kept_whole before truncate on inbox_message for each statement execute function inbox_kept();
create trigger inbox_kept_whole before truncate on inbox_message_any for each statement execute function inbox_kept();
create trigger inbox_kept_whole before truncate on inbox_watermark for each statement execute function inbox_kept();
-- A day takes over the triggers of rows when it is attached, and needs its own for TRUNCATE. Dropping a day empties it first.
-- +goose StatementBegin
do $migration$ declare owner name; day regclass; begin
	for day in select inhrelid from pg_inherits where inhparent = 'inbox_message'::regclass loop
		execute format('create trigger inbox_kept_whole before truncate on %s for each statement execute function inbox_kept()', day);
	end loop;
	execute replace(pg_get_functiondef('inbox_make_day(date)'::regprocedure), $$, name);$$, replace($$, name);
	execute format('create trigger inbox_kept_whole before truncate on @schema.%I for each statement execute function @schema.inbox_kept()', name);$$,
		'@schema', quote_ident(current_schema())));
	execute replace(pg_get_functiondef('inbox_drop_day(date)'::regprocedure), $$'100ms', true);$$,
		$$'100ms', true), set_config('effectonce.inbox', 'forget', true);$$);
	select pg_get_userbyid(relowner) into owner from pg_class where oid = 'inbox_message_any'::regclass;
	if owner <> current_user then
		execute format('alter function inbox_kept() owner to %I', owner);
	end if;
end $migration$;
-- +goose StatementEnd
