-- Of the service that takes payments.
create table if not exists payment (
	id      uuid primary key,
	account text not null,
	amount  bigint not null check (amount > 0)
);

-- Of the ledger. The primary key says once more that a payment is booked once.
create table if not exists account (
	name text primary key
);
create table if not exists booking (
	payment uuid primary key,
	account text not null references account,
	amount  bigint not null
);
