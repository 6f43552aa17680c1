-- +goose Up
-- How far a partition is decided, for consumers that go by numbers instead of ids: one row holds for each numbering (outbox and
-- incarnation, or the zero outbox for the topic's own offsets) that the partition has met. It is never updated: whoever decides
-- deletes the version that it began with and inserts the next one, so that a snapshot that is kept open slows nothing down, and
-- whoever began with the same version finds it gone. Version 0 stays for good and says that there is another one.
create table inbox_watermark (
	consumer_name text collate "C" not null,
	topic         text collate "C" not null,
	partition     integer not null,
	outbox_id     uuid not null,
	incarnation   integer not null,
	version       bigint not null,
	lanes         smallint[] not null,
	seqs          bigint[] not null,  -- the highest number decided in each of them
	latest        bigint not null,    -- the latest time of a decided event, Unix milliseconds
	moved_at      timestamptz not null default clock_timestamp(),
	primary key (consumer_name, topic, partition, outbox_id, incarnation, version),
	constraint inbox_watermark_lanes check (cardinality(lanes) = cardinality(seqs))
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off, toast.vacuum_truncate = off);

-- Incarnations that an operator accepted for a consumer that goes by numbers: with each, numbers begin again.
create table inbox_numbering (
	consumer_name text collate "C" not null,
	outbox_id     uuid not null,
	incarnation   integer not null,
	accepted_at   timestamptz not null default clock_timestamp(),
	primary key (consumer_name, outbox_id, incarnation)
);

-- How a consumer tells repeats, fixed at its first start, and until when it looks at ids as well, after it was moved from them.
alter table inbox_consumer
	add column dedup text collate "C" not null default 'id' constraint inbox_consumer_dedup check (dedup in ('id', 'watermark', 'offset')),
	add column ids_until timestamptz;

-- A binary that knows less would go by ids for a consumer that has none.
comment on table inbox_message is 'effectonce: binaries from 20003 on';
