-- +goose Up
-- How long the result and the key are kept from the completion on, as the claim said, in microseconds; null: for ever. Whoever completes the
-- operation, recovery or a person too, keeps what its service has promised. The defaults are those of a claim that says nothing.
alter table idempotency_key add column keep_body bigint default 86400000000, add column keep_key bigint default 259200000000;
