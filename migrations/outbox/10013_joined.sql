-- +goose Up
-- Since when a relay has been there and well: it counts for a share of the lanes once it has for a heartbeat's time.
alter table relay_member add column joined timestamptz not null default clock_timestamp();
