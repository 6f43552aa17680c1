-- +goose Up
-- How many offsets from began_offset to from_offset are accounted for: decided events, and offsets that hold no record
-- for a consumer. Fewer than there are: a worker has passed events without deciding them.
alter table inbox_progress add column accounted bigint not null default 0;
update inbox_progress set accounted = from_offset - began_offset where began_offset is not null;
