-- +goose Up
-- The inbox's COMMIT is told by its words, so that it needs no statement before it: "and no chain" says what is so without it, and no other
-- COMMIT has it. What the effect turned off of the commit's durability is turned on again here, as late as the transaction can.
-- SET CONSTRAINTS ALL IMMEDIATE would have the trigger run before that, and nothing would guard the COMMIT.
-- +goose StatementBegin
create or replace function inbox_guard() returns trigger language plpgsql as $$
begin
	if current_query() like '%commit and no chain%' or current_setting('effectonce.inbox', true) = 'done' then
		null;
	elsif current_query() ~* '[[:<:]]set[[:space:]]+constraints[[:>:]]' then
		raise exception 'SET CONSTRAINTS ALL is not for effects: it would end what guards the transaction of the inbox'
			using hint = 'Name the constraints: SET CONSTRAINTS a, b IMMEDIATE.';
	else
		raise exception 'an effect ends the transaction of the inbox: nothing of it is committed'
			using hint = 'Return an error to roll the effect back, and use tx.Begin for a savepoint. tx.Conn() must not be given to code that begins or ends transactions.';
	end if;
	if current_setting('synchronous_commit') = 'off' then
		perform set_config('synchronous_commit', 'on', true);
	end if;
	return null;
end $$;
-- +goose StatementEnd
