package main

const queryEmptyKeys = `-- bench: empty keys
truncate idempotency_key, bench_key`

const queryVacuumKeys = `-- bench: vacuum keys
vacuum analyze idempotency_key`

// A hand-written table of keys: no lease, no fingerprint, no retention.
const queryKeysByHand = `-- bench: keys by hand
create table bench_key (key text primary key, code integer, body bytea, created_at timestamptz not null default now())`

const queryDropKeysByHand = `-- bench: drop keys by hand
drop table if exists bench_key`

const queryInsertKey = `-- bench: insert key
insert into bench_key (key) values ($1)`

const queryCompleteKey = `-- bench: complete key
update bench_key set code = $2, body = $3 where key = $1`
