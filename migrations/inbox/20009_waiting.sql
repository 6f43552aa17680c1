-- +goose Up
-- Since when a released event waits for its next attempt. An operator who takes the note back has it tried at once.
-- Null: it does not wait.
alter table inbox_parked add column waiting_at timestamptz;
