package email

// The statuses of a notification:
//
//	pending  to be sent at due_at
//	sending  claimed until due_at; after that the outcome of the attempt is unknown
//	sent     accepted: the provider said so in the attempt or in a lookup (outcome)
//	failed   rejected, or given up
//	unknown  may have been accepted; an operator must decide
//
// uncertain: an earlier attempt of a pending or sending row may have been accepted.
const ddlNotification = `-- email: table
create table if not exists {schema}email_notification (
	id                bigint generated always as identity primary key,
	kind              text not null,
	source_payment_id uuid not null,
	message_id        text not null unique, -- the mail's Message-ID
	event_id          uuid not null,
	tenant            text not null default '',
	account_id        text not null,
	amount            bigint not null,
	currency          text not null,
	recipient         text not null,
	subject           text not null,
	body              text not null,
	created_at        timestamptz not null default clock_timestamp(),
	status            text not null default 'pending',
	attempts          integer not null default 0,
	attempted_at      timestamptz,
	due_at            timestamptz not null default clock_timestamp(),
	uncertain         boolean not null default false,
	lease_token       uuid,
	outcome           text, -- accepted, found, refused, gave up, unknown
	last_error        text,
	sent_at           timestamptz,
	constraint email_notification_once unique (kind, source_payment_id),
	constraint email_notification_status check (status in ('pending', 'sending', 'sent', 'failed', 'unknown')),
	constraint email_notification_sent check ((status = 'sent') = (sent_at is not null))
)`

const ddlDue = `-- email: index of due notifications
create index if not exists email_notification_due on {schema}email_notification (due_at)
	where status in ('pending', 'sending')`

const queryProbe = `-- email: probe
select from {schema}email_notification limit 0`

const queryInsert = `-- email: insert
insert into {schema}email_notification
	(kind, source_payment_id, message_id, event_id, tenant, account_id, amount, currency, recipient, subject, body)
values ('receipt', $1::uuid, $2::text, $3::uuid, $4::text, $5::text, $6::bigint, $7::text, $8::text, $9::text,
	$10::text)
on conflict (kind, source_payment_id) do nothing`

const queryFind = `-- email: find
select tenant, account_id, amount, currency from {schema}email_notification where kind = 'receipt'
	and source_payment_id = $1::uuid`

// The claim is committed before the mail is sent. It uses now(), which is stable: clock_timestamp() could not use the
// index. In a single-statement transaction the two are the same.
const queryClaim = `-- email: claim
with due as (
	select id from {schema}email_notification
	where status in ('pending', 'sending') and due_at <= now()
	order by due_at limit 1 for update skip locked
)
update {schema}email_notification n
set uncertain = n.uncertain or n.status = 'sending', status = 'sending', attempts = n.attempts + 1,
	attempted_at = now(),
	lease_token = $1::uuid, due_at = now() + $2::bigint * interval '1 microsecond'
from due where n.id = due.id
returning n.id, n.message_id, n.recipient, n.subject, n.body, n.created_at, n.attempts, n.uncertain,
	extract(epoch from now() - n.created_at)::float8`

// Nothing was sent for a claim whose reply was lost.
const queryRelease = `-- email: release a claim
update {schema}email_notification set status = 'pending', attempts = attempts - 1, lease_token = null, due_at = now()
where lease_token = $1::uuid and status = 'sending'`

// Only the holder of the lease records, so that a stale sender changes nothing.
const queryRecord = `-- email: record
update {schema}email_notification
set status = $3::text, uncertain = $4::boolean, outcome = nullif($5::text, ''), last_error = nullif($6::text, ''),
	lease_token = null,
	due_at = now() + $7::bigint * interval '1 microsecond', sent_at = case when $3::text = 'sent' then now() end
where id = $1::bigint and lease_token = $2::uuid and status = 'sending'`
