-- +goose Up
-- Keys that wait for a person: an event of theirs finally failed, and every later one goes behind it. The key is the hash of
-- (tenant, topic, key), for a Kafka key may be longer than an index row; the parts stand beside it, as bytes, for foreign
-- ones are no text.
create table inbox_parked_key (
	consumer_name text collate "C" not null,
	key_hash      bytea not null check (octet_length(key_hash) = 32), -- sha256 of length and bytes of tenant, topic, key
	tenant        bytea not null,
	topic         text collate "C" not null,
	key           bytea not null,
	state         text collate "C" not null default 'parked',
	code          text collate "C" not null default '', -- why, in a machine's words
	reason        text not null default '',             -- and in a person's
	at_bound      boolean not null default false,       -- its list is as long as it may be: its partition halts
	since         timestamptz not null default clock_timestamp(),
	primary key (consumer_name, key_hash),
	constraint inbox_parked_key_state check (state in ('parked', 'releasing'))
);
create index inbox_parked_key_releasing on inbox_parked_key (consumer_name, since) where state = 'releasing';

-- What is open: the record as it was read, byte for byte. A list is the rows of one key by id; events without a key, or parked
-- alone, or quarantined for their age, have no key_hash and a state of their own.
create table inbox_parked (
	id               bigint generated always as identity primary key,
	consumer_name    text collate "C" not null,
	message_id       uuid not null,
	key_hash         bytea,
	kind             text collate "C" not null,
	state            text collate "C" not null default 'parked', -- of an event alone; a listed one's is its key's
	tenant           bytea not null default '',
	topic            text collate "C" not null,
	type             text not null default '',            -- to look at; the record counts
	record_partition integer not null,
	record_offset    bigint not null,
	record_millis    bigint not null,                     -- Unix milliseconds: a foreign clock may lie outside of timestamptz
	record_key       bytea,
	record_value     bytea,                               -- null: a tombstone
	record_headers   jsonb not null default '[]',         -- in order: [name, base64], [name, null], or ["", base64, base64 of a name that is no text]
	code             text collate "C" not null default '',
	reason           text not null default '',
	attempts         integer not null default 0,          -- runs before it was parked
	release_attempts integer not null default 0,          -- runs of its present release, counted before each
	parked_at        timestamptz not null default clock_timestamp(),
	constraint inbox_parked_message unique (consumer_name, message_id),
	constraint inbox_parked_list foreign key (consumer_name, key_hash) references inbox_parked_key,
	constraint inbox_parked_kind check (kind in ('failed', 'behind', 'quarantined')),
	constraint inbox_parked_state check (state in ('parked', 'releasing')),
	constraint inbox_parked_alone check (key_hash is null or state = 'parked')
) with (autovacuum_vacuum_scale_factor = 0.02);
create index inbox_parked_by_key on inbox_parked (consumer_name, key_hash, id) where key_hash is not null;
create index inbox_parked_releasing on inbox_parked (consumer_name, id) where state = 'releasing';

-- How far each partition's first batch after an assignment is: what killed the process is found here by the next one. The
-- range is finished when from_offset has reached to_offset.
create table inbox_progress (
	consumer_name text collate "C" not null,
	topic         text collate "C" not null,
	partition     integer not null,
	from_offset   bigint not null, -- the first one that is not decided
	to_offset     bigint not null,
	attempts      integer not null default 0, -- counted runs of the event at from_offset that ended with their process
	halted_at     timestamptz,     -- the partition waits for a person since
	halted_code   text collate "C" not null default '',
	halted_reason text not null default '',
	updated_at    timestamptz not null default clock_timestamp(),
	primary key (consumer_name, topic, partition)
) with (fillfactor = 50);

-- What people did to parked events, and the record as it was before an edit or a discard.
create table inbox_audit (
	id             bigint generated always as identity primary key,
	at             timestamptz not null default clock_timestamp(),
	operator       text not null,
	action         text collate "C" not null,
	reason         text not null,
	consumer_name  text collate "C" not null,
	message_id     uuid,
	tenant         bytea,
	topic          text collate "C",
	key            bytea,
	detail         jsonb not null default '{}',
	record_value   bytea,
	record_headers jsonb
);

-- A binary that knows less does not respect what the tables of this release say: marks, pauses, halts.
comment on table inbox_message is 'effectonce: binaries from 20002 on';
