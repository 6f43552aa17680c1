-- +goose Up
-- Events that wait beside the outbox, so that others need not wait behind them. A row keeps its outbox id, moves between
-- outbox_event, outbox_held and outbox_parked by delete ... returning, and never comes back into outbox_event.

-- Claimed events that cannot be sent now while others can: their partition does not answer, their topic is refused, or an
-- event before them in their lane and partition was refused. They keep their sequence number, and what comes later for
-- the same lane and partition stands behind them.
create table outbox_held (
	lane         smallint not null,
	id           bigint not null,
	topic        text collate "C" not null,
	partition    integer not null check (partition >= -1), -- -1: the topic as a whole is refused
	seq          bigint not null,
	sent         boolean not null, -- an attempt under this number may have reached the broker
	maybe        boolean not null default false, -- released after an attempt under another number: carries ce_maybe
	message_id   uuid not null,
	source       text collate "C" not null,
	tenant       text collate "C" not null,
	key          text collate "C" not null,
	type         text collate "C" not null,
	content_type text collate "C" not null,
	headers      jsonb,
	payload      bytea,
	event_time   timestamptz,
	created_at   timestamptz not null,
	held_at      timestamptz not null default clock_timestamp(),
	-- A key of 8 KiB does not fit into an index. Topics have no slash, so the text before the hash is unambiguous.
	key_hash     bytea generated always as (sha256(replace(topic || '/' || octet_length(tenant)::text || '/' || tenant || key, '\', '\\')::bytea)) stored not null,
	primary key (lane, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off, toast.vacuum_truncate = off);
-- Not by lane first: a planner that takes the table for empty would use it to find an id, and read the whole lane for each.
create index outbox_held_drain on outbox_held (topic, partition, lane, seq);
create index outbox_held_key on outbox_held (key_hash) where key <> '';

-- Keys of which an event was refused. While a mark stands, every event of its key goes to outbox_parked, in the claim.
create table outbox_parked_key (
	lane     smallint not null,
	tenant   text collate "C" not null,
	topic    text collate "C" not null,
	key      text collate "C" not null check (key <> ''),
	state    text collate "C" not null default 'parked' check (state in ('parked', 'releasing')),
	since    timestamptz not null default clock_timestamp(), -- of the state
	reason   text not null,
	code     text collate "C" not null,
	key_hash bytea generated always as (sha256(replace(topic || '/' || octet_length(tenant)::text || '/' || tenant || key, '\', '\\')::bytea)) stored not null,
	primary key (key_hash)
);
create index outbox_parked_key_lane on outbox_parked_key (lane, state, since);

-- Refused events, and what waits behind them. A key's list is in the order of id.
create table outbox_parked (
	lane            smallint not null,
	id              bigint not null,
	alone           boolean not null, -- keyless, or parked without its key: no mark, no list
	releasing       boolean not null default false, -- of one that is alone; the others have it in their key's mark
	maybe_published boolean not null, -- an attempt may have reached the broker
	attempts        integer not null, -- how often it was refused; 0: it only waits behind one that was
	reason          text not null default '', -- of the last refusal
	code            text collate "C" not null default '',
	message_id      uuid not null,
	source          text collate "C" not null,
	tenant          text collate "C" not null,
	topic           text collate "C" not null,
	key             text collate "C" not null,
	type            text collate "C" not null,
	content_type    text collate "C" not null,
	headers         jsonb,
	payload         bytea,
	event_time      timestamptz,
	created_at      timestamptz not null,
	parked_at       timestamptz not null default clock_timestamp(),
	key_hash        bytea generated always as (sha256(replace(topic || '/' || octet_length(tenant)::text || '/' || tenant || key, '\', '\\')::bytea)) stored not null,
	primary key (lane, id)
);
create index outbox_parked_list on outbox_parked (key_hash, id) where not alone;
create index outbox_parked_releasing on outbox_parked (lane, id) where releasing;
create index outbox_parked_message on outbox_parked (message_id);

-- What people did, by the command line or the operator's API. No payloads.
create table outbox_audit (
	id         bigint generated always as identity primary key,
	at         timestamptz not null default clock_timestamp(),
	operator   text not null check (operator <> ''),
	action     text collate "C" not null,
	message_id uuid, -- null: not about one event
	tenant     text collate "C",
	topic      text collate "C",
	reason     text not null check (reason <> ''),
	detail     jsonb
);
