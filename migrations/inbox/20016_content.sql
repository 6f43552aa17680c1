-- +goose Up
-- A short hash of what the event says, so that another event under the same id is no repeat. 0: not known.
alter table inbox_message add column content bigint not null default 0;
alter table inbox_message_any add column content bigint not null default 0;
alter table inbox_parked add column content bigint not null default 0;
