-- +goose Up
-- An effect that ends the transaction of its batch, through tx.Conn() or in a way that its text does not show, would commit the ids and the
-- marks of events whose effects have not run. That COMMIT fails: the inbox says at the beginning of a transaction that effects run in it, and
-- in the round trip of its own COMMIT that it ends it. The first row that a transaction writes queues the trigger, so it runs once. SET
-- CONSTRAINTS is no COMMIT, and an effect may use it.
-- +goose StatementBegin
create function inbox_guard() returns trigger language plpgsql as $$
begin
	if current_setting('effectonce.inbox', true) is distinct from 'done' and current_query() !~* '[[:<:]]set[[:space:]]+constraints[[:>:]]' then
		raise exception 'an effect ends the transaction of the inbox: nothing of it is committed'
			using hint = 'Return an error to roll the effect back, and use tx.Begin for a savepoint. tx.Conn() must not be given to code that begins or ends transactions.';
	end if;
	return null;
end $$;
-- +goose StatementEnd
create constraint trigger inbox_guard after insert on inbox_message deferrable initially deferred for each row
	when (current_setting('effectonce.inbox', true) = 'open' and set_config('effectonce.inbox', 'armed', true) = 'armed')
	execute function inbox_guard();
create constraint trigger inbox_guard after insert on inbox_message_any deferrable initially deferred for each row
	when (current_setting('effectonce.inbox', true) = 'open' and set_config('effectonce.inbox', 'armed', true) = 'armed')
	execute function inbox_guard();
create constraint trigger inbox_guard after insert on inbox_watermark deferrable initially deferred for each row
	when (current_setting('effectonce.inbox', true) = 'open' and set_config('effectonce.inbox', 'armed', true) = 'armed')
	execute function inbox_guard();
