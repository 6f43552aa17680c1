-- +goose Up
-- What producers write. Any language may say: insert into outbox_event (topic, key, type, payload) values (...).
-- Defaults and the generated column are inline expressions, never functions of ours, so that they work from any search_path.
create table outbox_event (
	-- One of 32 lanes: a key's events share a lane, and a lane has one owner at a time. A keyless event takes a lane of its own id.
	lane         smallint generated always as ((hashtextextended(coalesce(nullif(key, ''), message_id::text) collate "C", 0) & 31)::smallint) stored not null,
	-- Order within a lane. CACHE 1: a cached block would hand a later writer a lower id. The sequence is named because relays read
	-- it by that name: where another has the name, this fails, while Postgres would choose a name with a number.
	id           bigint generated always as identity (sequence name outbox_event_id_seq cache 1),
	-- A UUIDv7: Postgres 15 has no uuidv7(), and a v4 would miss the inbox's day partitions.
	message_id   uuid not null default encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
		placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid,
	source       text collate "C" not null default '',
	tenant       text collate "C" not null default '',
	topic        text collate "C" not null,
	key          text collate "C" not null default '',
	type         text collate "C" not null,
	content_type text collate "C" not null default 'application/json',
	headers      jsonb,
	payload      bytea, -- null: a Kafka tombstone
	event_time   timestamptz, -- null: created_at
	created_at   timestamptz not null default clock_timestamp(),
	primary key (lane, id),
	constraint outbox_event_topic check (topic ~ '^[a-zA-Z0-9._-]+$' and octet_length(topic) <= 249 and topic not in ('.', '..')),
	constraint outbox_event_message_id check (message_id not in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')),
	constraint outbox_event_type check (type <> ''),
	constraint outbox_event_key check (octet_length(key) <= 8192),
	-- What ce_time can say. A relay that could not read a row could not pass it either.
	constraint outbox_event_time check (least(created_at, event_time) >= timestamptz '0001-01-01 00:00:00+00'
		and greatest(created_at, event_time) < timestamptz '10000-01-01 00:00:00+00'),
	constraint outbox_event_headers check (headers is null or (jsonb_typeof(headers) = 'object'
		and not headers @? 'strict $.* ? (@.type() != "string")'
		and not headers @? 'strict $.keyvalue() ? (@.key starts with "ce_" || @.key == "content-type")'))
) with (
	-- Rows live for milliseconds. Vacuum by count, not by a share of a table that is empty most of the time.
	autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
	autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
	autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000,
	-- A queue's end is empty after every backlog. To give it back vacuum would lock producers out, and fill it again a moment later.
	vacuum_truncate = off, toast.vacuum_truncate = off
);

-- Who may send a lane. Locked by every claim and settle; written only at take-over and reservation of numbers, so that it
-- stays small under a snapshot that keeps vacuum away. The lease of a lane is its owner's, or the one of its taking.
create table outbox_lane (
	lane         smallint primary key check (lane between 0 and 31),
	owner        uuid, -- null: free
	fence        bigint not null default 0,
	lease_until  timestamptz not null default '-infinity', -- from its taking: afterwards the owner's counts
	reserved_seq bigint not null default 0
) with (fillfactor = 50);
insert into outbox_lane (lane) select generate_series(0, 31);

-- The journal: which event has which sequence number, from claim to settle. An entry that outlives its claim means "outcome unknown".
create table outbox_claim (
	lane      smallint not null,
	first_seq bigint not null,
	ids       bigint[] not null,
	seqs      bigint[] not null,
	primary key (lane, first_seq),
	check (cardinality(ids) = cardinality(seqs) and cardinality(ids) > 0)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off, toast.vacuum_truncate = off);
-- A claim's arrays live for milliseconds: to compress them took a third of the claim.
alter table outbox_claim alter column ids set storage external, alter column seqs set storage external;

-- The partition count a topic's keys were spread over when it was first published. A change needs an operator: a resize reorders keys.
create table outbox_topic (
	topic      text collate "C" primary key,
	partitions integer not null check (partitions > 0),
	pinned_at  timestamptz not null default clock_timestamp()
);

-- The relays that are alive, for a fair share of the lanes.
create table relay_member (
	owner       uuid primary key,
	name        text not null default '', -- host and process, for people
	seen        timestamptz not null,
	lease_until timestamptz not null default '-infinity' -- of all its lanes
) with (fillfactor = 50);

-- Whose numbers these are. The incarnation rises when numbers can have gone back: another system, another timeline, a restore.
create table outbox_meta (
	one               boolean primary key default true check (one),
	outbox_id         uuid not null default gen_random_uuid(),
	incarnation       integer not null default 1,
	system_identifier bigint not null,
	timeline          text not null
);
insert into outbox_meta (system_identifier, timeline) values (0, ''); -- 10016 asks the server

-- Which binaries this schema serves, by the newest migration that they know: a later migration that leaves some behind raises it.
comment on table outbox_event is 'effectonce: binaries from 10001 on';
