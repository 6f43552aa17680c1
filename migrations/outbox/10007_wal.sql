-- +goose Up
-- What relays that read the WAL know of their replication slot: one row, made with the first slot.
create table outbox_wal (
	one               boolean primary key default true check (one),
	slot              text collate "C" not null,
	system_identifier bigint not null,
	timeline          text not null,
	base              pg_lsn not null, -- numbers of events from the WAL count from here
	confirmed         pg_lsn not null, -- what lies before it is published and deleted; the slot is never told of more
	confirmed_at      timestamptz not null default clock_timestamp(),
	owner             uuid -- the relay that reads the slot, or did last
) with (fillfactor = 50);

-- Lanes whose events are published from the WAL and not from the table. A row that outlives its relay says that the table may
-- still have events that were published.
create table outbox_streamed (
	lane     smallint primary key,
	snapshot pg_snapshot not null, -- what it shows was published from the table
	until    pg_lsn not null, -- no transaction that commits after it is in the snapshot
	done     bigint[] not null default '{}', -- ids that were published from the table all the same, after the snapshot
	since    timestamptz not null default clock_timestamp()
);
