package main

const queryPostgres = `-- bench: postgres
show server_version`

const queryEmptyOutbox = `-- bench: empty outbox
truncate outbox_event, outbox_claim`

const queryVacuumOutbox = `-- bench: vacuum outbox
vacuum analyze outbox_event`

const queryCheckpoint = `-- bench: checkpoint
checkpoint`

const queryLeft = `-- bench: left
select count(*) from outbox_event`

const queryWAL = `-- bench: wal
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`

// The ledger of the inbox case: one row per message, with a unique business key.
const queryLedgerTable = `-- bench: ledger table
create table if not exists ledger (
	id bigint generated always as identity primary key,
	entry_type text not null,
	source_payment_id uuid not null,
	amount bigint not null,
	unique (entry_type, source_payment_id)
)`

const queryEmptyInbox = `-- bench: empty inbox
do $$ begin
	set local effectonce.inbox = 'forget';
	truncate inbox_message, inbox_message_any, inbox_watermark, ledger;
end $$`

const queryVacuumInbox = `-- bench: vacuum inbox
vacuum analyze inbox_message, ledger`

const queryCredit = `-- bench: credit
insert into ledger (entry_type, source_payment_id, amount) values ('credit', $1, 100) on conflict do nothing`

const queryCreditAll = `-- bench: credit all
insert into ledger (entry_type, source_payment_id, amount) select 'credit', unnest($1::uuid[]), 100
	on conflict do nothing`

// The hand-written inbox: inserts the message's row if it does not exist.
const queryPlainInbox = `-- bench: plain inbox
insert into inbox_message (consumer_name, message_id) values ('ledger', $1) on conflict do nothing`

// The bytes of a table with its partitions and TOAST, and those of its indexes.
const querySizes = `-- bench: sizes
select sum(pg_table_size(t.relid))::float8, sum(pg_indexes_size(t.relid))::float8
from (select $1::text::regclass as relid union select relid from pg_partition_tree($1::text::regclass)) t`

// The relays with a valid lease, all their lanes, the smallest and the largest share; and the lanes that are streamed,
// once the reader has passed the WAL that was written before it started.
const queryShares = `-- bench: shares
select count(*), coalesce(sum(share), 0)::bigint, coalesce(min(share), 0), coalesce(max(share), 0),
	(select count(*) from outbox_streamed where exists (select from outbox_wal w
		join pg_replication_slots s on s.slot_name = w.slot join pg_stat_replication r on r.pid = s.active_pid
		where pg_current_wal_flush_lsn() - r.sent_lsn < 65536))
from (select count(l.lane) as share from relay_member m left join outbox_lane l on l.owner = m.owner
	where m.lease_until > clock_timestamp() group by m.owner) shares`

// The business table of the append case.
const queryAccounts = `-- bench: accounts
create table bench_account (id integer primary key, balance bigint not null) with (fillfactor = 50)`

const queryPayments = `-- bench: payments
create table bench_payment (
	id bigint generated always as identity primary key,
	account_id integer not null,
	amount bigint not null,
	note text not null,
	created_at timestamptz not null default now()
)`

// The smallest outbox that one writes by hand.
const querySmallOutbox = `-- bench: small outbox
create table bench_outbox (id bigserial primary key, payload jsonb not null)`

const querySmallAppend = `-- bench: append to the small outbox
insert into bench_outbox (payload) values ($1)`

const queryOpenAccounts = `-- bench: open accounts
insert into bench_account (id, balance) select n, 0 from generate_series(0, 9999) n`

const queryEmptyPayments = `-- bench: empty payments
truncate bench_payment, bench_outbox`

// Also writes the full pages that the WAL needs after a checkpoint before the measurement.
const queryResetAccounts = `-- bench: reset accounts
update bench_account set balance = 0`

const queryVacuumAccounts = `-- bench: vacuum accounts
vacuum analyze bench_account`

const queryPay = `-- bench: pay
insert into bench_payment (account_id, amount, note) values ($1, $2, $3)`

const queryBook = `-- bench: book
update bench_account set balance = balance + $2 where id = $1`

// The columns that Debezium's outbox event router documents; json, because jsonb would change the payload's bytes.
const queryDebeziumTable = `-- bench: debezium table
create table debezium_outbox (
	id uuid primary key,
	aggregatetype varchar(255) not null,
	aggregateid varchar(255) not null,
	type varchar(255) not null,
	payload json
)`

const queryDebeziumPublication = `-- bench: debezium publication
create publication debezium for table debezium_outbox`

const queryEmptyDebezium = `-- bench: empty debezium
truncate debezium_outbox`

const queryDebeziumSlot = `-- bench: debezium slot
select pg_create_logical_replication_slot($1, 'pgoutput')`

const queryDropSlot = `-- bench: drop slot
select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1 and not active`
