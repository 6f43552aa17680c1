-- +goose Up
-- The programs that run the consumer, by name: {"host": where one was last, "seen": when}. Two at the same time take
-- events from each other, and each believes to get all of them.
alter table inbox_consumer add column programs jsonb not null default '{}';
