-- +goose Up
-- Which store has saved the recovery points, and with which of its saves: one that is executed late must not put older ones back. Null where
-- nothing was saved, so that a key of one transaction takes no room for them.
alter table idempotency_key add column saved_by text collate "C", add column saved_seq bigint;
