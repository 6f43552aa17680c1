-- +goose Up
-- Events that are not to be published before a time. When it has come, the owner of their lane moves them into outbox_event,
-- in the order of (due, seq), under new ids. Any language may say:
-- insert into outbox_scheduled (due, topic, key, type, payload) values (...).
-- The checks are those of outbox_event: a move must not fail.
create table outbox_scheduled (
	-- As in outbox_event; a keyless row whose message id is left to the move takes a lane of its own number.
	lane         smallint generated always as ((hashtextextended(coalesce(nullif(key, ''), message_id::text, seq::text) collate "C", 0) & 31)::smallint) stored not null,
	due          timestamptz not null,
	seq          bigint generated always as identity (cache 1),
	message_id   uuid, -- null: the move makes a UUIDv7, so that inboxes file it under the day it comes
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
	primary key (lane, due, seq),
	constraint outbox_scheduled_due check (isfinite(due)),
	constraint outbox_scheduled_topic check (topic ~ '^[a-zA-Z0-9._-]+$' and octet_length(topic) <= 249 and topic not in ('.', '..')),
	constraint outbox_scheduled_message_id check (message_id not in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')),
	constraint outbox_scheduled_type check (type <> ''),
	constraint outbox_scheduled_key check (octet_length(key) <= 8192),
	constraint outbox_scheduled_time check (least(created_at, event_time) >= timestamptz '0001-01-01 00:00:00+00'
		and greatest(created_at, event_time) < timestamptz '10000-01-01 00:00:00+00'),
	constraint outbox_scheduled_headers check (headers is null or (jsonb_typeof(headers) = 'object'
		and not headers @? 'strict $.* ? (@.type() != "string")'
		and not headers @? 'strict $.keyvalue() ? (@.key starts with "ce_" || @.key == "content-type")'))
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off, toast.vacuum_truncate = off);
