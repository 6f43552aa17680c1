-- +goose Up
-- Since when an event of the partition fails and is tried again after long pauses, and why. An operator who takes the
-- note back has it tried at once. Null: none is.
alter table inbox_progress add column trying_at timestamptz, add column trying_reason text not null default '';
