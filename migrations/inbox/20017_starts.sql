-- +goose Up
-- The starts of the last minutes: [{"host": where, "at": when}]. Many on one host: something ends its workers.
alter table inbox_consumer add column starts jsonb not null default '[]';
