package payments

// The unique constraint is what makes two requests with one key one payment: the second waits for the first at the index.
// Rows without a key are all different, for null equals nothing.
const ddlPayment = `-- payments: table
create table if not exists {schema}payment (
	payment_id      uuid primary key,
	tenant          text not null default '',
	idempotency_key text,
	account_id      text not null,
	amount          bigint not null,
	currency        text not null,
	event_id        uuid not null, -- of the PaymentCreated that was appended with this row
	created_at      timestamptz not null default clock_timestamp(),
	constraint payment_idempotency unique (tenant, idempotency_key),
	constraint payment_amount check (amount > 0),
	constraint payment_currency check (currency ~ '^[A-Z]{3}$')
)`

const queryProbe = `-- payments: probe
select from {schema}payment limit 0`

// No conflict target: it must also run where a test has taken the constraint away, to show what that one is for.
const queryInsert = `-- payments: insert
insert into {schema}payment (payment_id, tenant, idempotency_key, account_id, amount, currency, event_id)
values ($1::uuid, $2::text, nullif($3::text, ''), $4::text, $5::bigint, $6::text, $7::uuid)
on conflict do nothing
returning created_at`

const queryByKey = `-- payments: find by key
select payment_id::text, account_id, amount, currency, created_at
from {schema}payment where tenant = $1::text and idempotency_key = $2::text`

const queryByID = `-- payments: find by id
select payment_id::text, account_id, amount, currency, created_at
from {schema}payment where tenant = $1::text and payment_id = $2::uuid`
