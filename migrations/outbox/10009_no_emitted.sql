-- +goose Up
-- Every event is a row again: docs/decisions/0026.
alter table outbox_streamed drop column emitted;
