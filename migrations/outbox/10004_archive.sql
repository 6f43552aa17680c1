-- +goose Up
-- What was published, while archiving is on, to look at it or to publish it once more: a partition per day. Whatever has no
-- day goes into the default partition, because a settle must never fail for want of one.
create sequence outbox_archive_pos_seq;
create table outbox_archive (
	pos          bigint not null default nextval('outbox_archive_pos_seq'), -- the order in which events left the outbox; a key's order is this one
	published_at timestamptz not null default clock_timestamp(),
	epoch        text collate "C" not null, -- with lane and seq: the number it was published under
	lane         smallint not null,
	seq          bigint not null,
	id           bigint not null,
	message_id   uuid not null,
	source       text collate "C" not null,
	tenant       text collate "C" not null,
	topic        text collate "C" not null,
	key          text collate "C" not null,
	type         text collate "C" not null,
	content_type text collate "C" not null,
	headers      jsonb,
	payload      bytea,
	event_time   timestamptz,
	created_at   timestamptz not null
) partition by range (published_at);
alter sequence outbox_archive_pos_seq owned by outbox_archive.pos;
create index outbox_archive_pos on outbox_archive (pos);
create table outbox_archive_default partition of outbox_archive default;
