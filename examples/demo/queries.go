package main

// The demo reads the workers' tables with its own statements only.

const queryCounts = `-- demo: count progress
select (select count(*) from {schema}outbox_event), (select count(*) from {schema}outbox_claim),
	(select count(*) from {schema}ledger_entry),
	(select count(*) from {schema}email_notification where status = 'sent'),
	(select count(*) from {schema}email_notification where status in ('pending', 'sending'))`

const queryFigures = `-- demo: count results
select (select count(*) from {schema}outbox_event), (select count(*) from {schema}outbox_claim),
	(select count(*) from {schema}ledger_entry),
	(select coalesce(sum(amount), 0)::bigint from {schema}ledger_entry where amount > 0),
	(select coalesce(sum(amount), 0)::bigint from {schema}ledger_entry),
	(select count(*) from {schema}email_notification where status = 'sent'),
	(select count(*) from {schema}email_notification where status <> 'sent')`

const queryPayments = `-- demo: payments
select payment_id::text, event_id::text, account_id, amount, currency from {schema}payment`

const queryCharges = `-- demo: payments with a card
select payment_id::text, charge, amount from {schema}payment where charge is not null`

// attempts counts how often recovery has claimed the operation.
const queryRecovered = `-- demo: payments that recovery completed
select count(*) from {schema}idempotency_key where attempts > 0 and state = 'COMPLETED'
	and operation = 'payment.create'`

const queryUnfinished = `-- demo: keys without an outcome
select count(*) from {schema}idempotency_key where state not in ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED')`

const queryInbox = `-- demo: inbox rows per consumer
-- The second count is of rows that belong to a payment.
select m.consumer_name, count(*), count(p.event_id)
from (select consumer_name, message_id from {schema}inbox_message
	union all select consumer_name, message_id from {schema}inbox_message_any) m
left join {schema}payment p on p.event_id = m.message_id
group by m.consumer_name order by m.consumer_name`

const queryPairs = `-- demo: payments without exactly one ledger pair
select p.payment_id::text, count(l.id) from {schema}payment p
	left join {schema}ledger_entry l on l.source_payment_id = p.payment_id
group by p.payment_id
having count(*) filter (where l.amount = p.amount and l.currency = p.currency) <> 1
	or count(*) filter (where l.amount = -p.amount and l.currency = p.currency and l.account_id = p.account_id) <> 1
	or count(l.id) <> 2
order by p.payment_id`

const queryStrayEntries = `-- demo: ledger entries without a payment
select l.source_payment_id::text, count(*) from {schema}ledger_entry l
where not exists (select from {schema}payment p where p.payment_id = l.source_payment_id)
group by l.source_payment_id order by l.source_payment_id`

const queryNotifications = `-- demo: payments without exactly one sent notification
select p.payment_id::text, count(n.id)
from {schema}payment p left join {schema}email_notification n on n.source_payment_id = p.payment_id
group by p.payment_id
having count(n.id) <> 1 or count(*) filter (where n.status = 'sent' and n.amount = p.amount) <> 1
order by p.payment_id`

const queryStrayNotifications = `-- demo: notifications without a payment
select n.source_payment_id::text, count(*) from {schema}email_notification n
where not exists (select from {schema}payment p where p.payment_id = n.source_payment_id)
group by n.source_payment_id order by n.source_payment_id`

// Here the placeholder is the schema's name.
const queryDrop = `-- demo: drop the schema
drop schema if exists {schema} cascade`

const queryPlayCounts = `-- demo: counts of the page
select (select count(*) from {schema}payment where status = 'accepted'),
	(select count(*) from {schema}ledger_entry) / 2, (select count(*) from {schema}inbox_parked),
	(select count(*) from (select from {schema}ledger_entry group by source_payment_id having count(*) <> 2) wrong)`

const queryWay = `-- demo: the way of the last payments
select p.payment_id::text, p.account_id, p.created_at,
	exists (select from {schema}outbox_event e where e.message_id = p.event_id),
	exists (select from {schema}inbox_message m where m.consumer_name = $1::text and m.message_id = p.event_id),
	(select count(*) from {schema}ledger_entry l where l.source_payment_id = p.payment_id),
	coalesce((select n.status from {schema}email_notification n where n.source_payment_id = p.payment_id limit 1), ''),
	exists (select from {schema}inbox_parked k where k.message_id = p.event_id)
from {schema}payment p where p.status = 'accepted' order by p.created_at desc limit 8`
