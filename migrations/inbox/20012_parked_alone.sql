-- +goose Up
-- Events that are parked alone, without those behind keys, which may be millions.
create index inbox_parked_alone on inbox_parked (consumer_name, parked_at, id) where key_hash is null and state = 'parked';
