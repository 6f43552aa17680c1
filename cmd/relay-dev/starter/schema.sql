create table if not exists payment (id uuid primary key, account text not null, amount bigint not null); -- producer

-- Accounts that the ledger may book.
create table if not exists account (name text primary key);
insert into account values ('acc-1') on conflict do nothing;

-- A payment is booked once, whatever event tells of it.
create table if not exists ledger_entry (
	id                bigint generated always as identity primary key,
	entry_type        text not null,
	source_payment_id uuid not null,
	account           text not null,
	amount            bigint not null,
	unique (entry_type, source_payment_id)
);

-- pay is the producer: the row and its event in one statement. A repeated id pays nothing. -- sql
create or replace function pay(id uuid, account text, amount bigint) returns void language sql as $$ -- sql
	with made as (insert into payment values (id, account, amount) on conflict do nothing returning *) -- sql
	insert into outbox_event (topic, key, type, payload) -- sql
	select 'payments', made.account, 'PaymentMade', convert_to(row_to_json(made)::text, 'UTF8') from made -- sql
$$; -- sql
