package main

// The columns that Debezium's outbox event router documents; json, because jsonb would change the payload's bytes.
const queryDebeziumTable = `-- bench: debezium table
create table if not exists debezium_outbox (
	id uuid primary key,
	aggregatetype varchar(255) not null,
	aggregateid varchar(255) not null,
	type varchar(255) not null,
	payload json
)`

const queryDebeziumPublication = `-- bench: debezium publication
create publication debezium for table debezium_outbox`

const queryDebeziumPublished = `-- bench: debezium published
select exists (select from pg_publication where pubname = 'debezium')`

const queryEmptyDebezium = `-- bench: empty debezium
truncate debezium_outbox`

const queryDebeziumSlot = `-- bench: debezium slot
select pg_create_logical_replication_slot($1, 'pgoutput')`

const queryDropSlot = `-- bench: drop slot
select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1 and not active`
