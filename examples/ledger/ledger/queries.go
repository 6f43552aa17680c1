package ledger

// Amounts are signed minor units, a debit positive and a credit negative: the sum over any payment is zero.
//
// The unique constraint is the effect's business key. The inbox drops a second delivery of an event; the business key
// also catches another event for the same payment, and an event that the inbox has forgotten.
const ddlEntry = `-- ledger: table
create table if not exists {schema}ledger_entry (
	id                bigint generated always as identity primary key,
	entry_type        text not null,
	source_payment_id uuid not null,
	tenant            text not null default '',
	account_id        text not null,
	amount            bigint not null,
	currency          text not null,
	message_id        uuid not null, -- of the event
	booked_at         timestamptz not null default clock_timestamp(),
	constraint ledger_entry_once unique (entry_type, source_payment_id),
	constraint ledger_entry_side check (entry_type = 'payment_debit' and amount > 0 or entry_type = 'payment_credit'
		and amount < 0),
	constraint ledger_entry_currency check (currency ~ '^[A-Z]{3}$')
)`

const queryProbe = `-- ledger: probe
select from {schema}ledger_entry limit 0`

// One statement for the whole batch. It is sorted so that two workers with the same payments do not deadlock; n comes
// last so that the first of two events for one payment is booked. It completes a pair of which one row exists.
const queryBook = `-- ledger: book
insert into {schema}ledger_entry (entry_type, source_payment_id, tenant, account_id, amount, currency, message_id)
select e.entry_type, p.payment_id, p.tenant, e.account_id, e.amount, p.currency, p.message_id
from unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[]::uuid[]) with ordinality
	as p (payment_id, tenant, account_id, amount, currency, message_id, n)
cross join lateral (values ('payment_debit', 'clearing', p.amount), ('payment_credit', p.account_id, -p.amount))
	as e (entry_type, account_id, amount)
order by p.payment_id, e.entry_type, p.n
on conflict (entry_type, source_payment_id) do nothing`

// The first row that differs from the batch. It is a separate statement, because the insert's snapshot does not show a
// row that another transaction committed while the insert waited for it.
const queryMismatch = `-- ledger: mismatch
select p.n - 1, e.entry_type, e.account_id, e.amount, p.currency,
	b.entry_type is not null, coalesce(b.tenant, ''), coalesce(b.account_id, ''), coalesce(b.amount, 0),
	coalesce(b.currency, '')
from unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[]) with ordinality
	as p (payment_id, tenant, account_id, amount, currency, n)
cross join lateral (values ('payment_credit', p.account_id, -p.amount), ('payment_debit', 'clearing', p.amount))
	as e (entry_type, account_id, amount)
left join {schema}ledger_entry b on b.entry_type = e.entry_type and b.source_payment_id = p.payment_id
where (b.tenant, b.account_id, b.amount, b.currency) is distinct from (p.tenant, e.account_id, e.amount, p.currency)
order by p.n, e.entry_type
limit 1`
