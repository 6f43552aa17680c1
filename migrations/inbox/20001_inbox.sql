-- +goose Up
-- What a consumer has decided: one row per event. A row is written in the transaction of the event's effect, so that check-then-act cannot race.
-- Split by the day inside the UUIDv7 itself: an id always meets its own earlier row, and a day of history is dropped whole.
-- Days are made by the consumers' own maintenance (LIKE and ATTACH). No default partition: it would forbid DETACH CONCURRENTLY.
create table inbox_message (
	consumer_name text collate "C" not null,
	message_id    uuid not null,
	status        text collate "C" not null default 'done', -- what is open lives elsewhere, so that a dropped day holds nothing open
	processed_at  timestamptz not null default clock_timestamp(),
	error_code    text collate "C", -- why it was discarded
	primary key (consumer_name, message_id),
	constraint inbox_message_status check (status in ('done', 'discarded'))
) partition by range (message_id);

-- The same for ids that name no day (foreign ones) and for history from before a consumer's first start. Cleaned by age, in batches.
create table inbox_message_any (
	consumer_name text collate "C" not null,
	message_id    uuid not null,
	status        text collate "C" not null default 'done',
	processed_at  timestamptz not null default clock_timestamp(),
	error_code    text collate "C",
	primary key (consumer_name, message_id),
	constraint inbox_message_any_status check (status in ('done', 'discarded'))
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- The cleaner's: rows arrive in time order, so a few pages tell where the old ones are.
create index inbox_message_any_age on inbox_message_any using brin (processed_at) with (pages_per_range = 32, autosummarize = on);

-- Who consumes. The floor is the day of the first start and never changes: it decides which table older ids go to.
create table inbox_consumer (
	consumer_name text collate "C" primary key,
	floor         date not null,
	window_days   integer not null check (window_days > 0),
	started_at    timestamptz not null default clock_timestamp(),
	seen_at       timestamptz not null default clock_timestamp()
);

-- Days before this were dropped, or are about to be. Raised and committed before any drop, never lowered: an empty new day forgets.
create table inbox_days (
	one            boolean primary key default true check (one),
	dropped_before date not null default '1970-01-01' -- the first day that a UUIDv7 can name
);
insert into inbox_days default values;

-- Which binaries this schema serves, by the newest migration that they know: a later migration that leaves some behind raises it.
comment on table inbox_message is 'effectonce: binaries from 20001 on';
