-- +goose Up
-- What a relay says of itself with each heartbeat: the version of its program, what fails there and since when, and
-- when Kafka last acked an event of it.
alter table relay_member add column version text not null default '', add column trouble text not null default '',
	add column trouble_since timestamptz, add column acked_at timestamptz;
