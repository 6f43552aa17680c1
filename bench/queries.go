package main

const queryPostgres = `-- bench: postgres
select name, current_setting(name) from pg_settings
where name in ('server_version', 'fsync', 'full_page_writes', 'synchronous_commit', 'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_level')
order by name`

const queryEmptyOutbox = `-- bench: empty outbox
truncate outbox_event, outbox_claim`

const queryEmptyHeld = `-- bench: empty held
truncate outbox_held, outbox_claim`

// Beside the last few dead events, which a claim keeps while nothing else is acked.
const queryAnyLeft = `-- bench: any left
select exists (select from outbox_event e where not exists (select from outbox_claim c where c.lane = e.lane and e.id = any (c.ids)))`

const queryVacuumOutbox = `-- bench: vacuum outbox
vacuum analyze outbox_event`

const queryCheckpoint = `-- bench: checkpoint
checkpoint`

const queryLeft = `-- bench: left
select count(*) from outbox_event`

// A snapshot that a report or a dump would hold: it keeps every row that is deleted after it.
const queryPinSnapshot = `-- bench: pin snapshot
select count(*) from outbox_event`

// What the work reads, by table: unlike times it does not depend on what else the machine does.
const queryBuffers = `-- bench: buffers
select relname, heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)
from pg_statio_user_tables where relname like 'outbox%' or relname = 'relay_member'`

const queryDead = `-- bench: dead
select n_dead_tup from pg_stat_user_tables where relname = 'outbox_event'`

const queryWAL = `-- bench: wal
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`

// The ledger of the inbox case: one row for each message, behind a business key.
const queryLedgerTable = `-- bench: ledger table
create table if not exists ledger (
	id bigint generated always as identity primary key,
	entry_type text not null,
	source_payment_id uuid not null,
	amount bigint not null,
	unique (entry_type, source_payment_id)
)`

const queryEmptyInbox = `-- bench: empty inbox
truncate inbox_message, inbox_message_any, ledger`

const queryVacuumInbox = `-- bench: vacuum inbox
vacuum analyze inbox_message, ledger`

const queryCredit = `-- bench: credit
insert into ledger (entry_type, source_payment_id, amount) values ('credit', $1, 100) on conflict do nothing`

const queryCreditAll = `-- bench: credit all
insert into ledger (entry_type, source_payment_id, amount) select 'credit', unnest($1::uuid[]), 100 on conflict do nothing`

// What a service writes by hand: the message's row, and nothing else when it is there already.
const queryPlainInbox = `-- bench: plain inbox
insert into inbox_message (consumer_name, message_id) values ('ledger', $1) on conflict do nothing`
