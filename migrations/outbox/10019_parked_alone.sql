-- +goose Up
-- Events that are parked alone, without those behind keys, which may be millions.
create index outbox_parked_alone on outbox_parked (parked_at, id) where alone and not releasing;
