package payments

const ddlPayment = `-- payments: table
create table if not exists {schema}payment (
	payment_id uuid primary key,
	tenant     text not null default '',
	account_id text not null,
	amount     bigint not null,
	currency   text not null,
	event_id   uuid not null, -- of the PaymentCreated event
	status     text not null default 'accepted',
	charge     text, -- the card provider's reference
	confirmations integer not null default 0, -- by notices of the card provider
	created_at timestamptz not null default clock_timestamp(),
	constraint payment_amount check (amount > 0),
	constraint payment_currency check (currency ~ '^[A-Z]{3}$')
)`

// The table of an earlier release lacks these columns.
const ddlCard = `-- payments: add card columns
alter table {schema}payment
	add column if not exists status text not null default 'accepted',
	add column if not exists charge text,
	add column if not exists confirmations integer not null default 0`

const queryProbe = `-- payments: probe
select status, charge, confirmations from {schema}payment limit 0`

// A phase that runs again finds the row by the recorded id.
const queryInsert = `-- payments: insert
insert into {schema}payment (payment_id, tenant, account_id, amount, currency, event_id, status)
values ($1::uuid, $2::text, $3::text, $4::bigint, $5::text, $6::uuid, $7::text)
on conflict (payment_id) do update set payment_id = excluded.payment_id
returning created_at`

// It returns no row if the payment was accepted before, with its event. It accepts a declined payment, too: if the
// refusal was not recorded, a later attempt may have charged the card.
const queryAccept = `-- payments: accept
update {schema}payment set status = 'accepted', charge = $2::text where payment_id = $1::uuid and status <> 'accepted'
	returning created_at`

const queryDecline = `-- payments: decline
update {schema}payment set status = 'declined' where payment_id = $1::uuid and status = 'pending'`

const queryConfirm = `-- payments: confirm
update {schema}payment set confirmations = confirmations + 1 where payment_id = $1::uuid`

const queryByID = `-- payments: find by id
select payment_id::text, account_id, amount, currency, created_at, status
from {schema}payment where tenant = $1::text and payment_id = $2::uuid`
