-- +goose Up
-- Topics that an operator has paused: their events are set aside, in order, until they are resumed. Not a column of
-- outbox_topic, whose rows say that a topic was published to: one may be paused before that.
create table outbox_paused_topic (
	topic     text collate "C" primary key check (topic ~ '^[a-zA-Z0-9._-]+$' and octet_length(topic) <= 249),
	paused_at timestamptz not null default clock_timestamp(),
	paused_by text not null check (paused_by <> ''),
	reason    text not null check (reason <> '')
);

-- A binary that knows less does not respect what the tables of this release say: marks, pauses, halts.
comment on table outbox_event is 'effectonce: binaries from 10005 on';
