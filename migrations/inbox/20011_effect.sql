-- +goose Up
-- When an effect of the partition was last committed, as of the last move of the progress. Null: never since this column.
alter table inbox_progress add column effect_at timestamptz;
