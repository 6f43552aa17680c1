-- +goose Up
-- Whether any held event of a topic may have been sent, without reading all that is held.
create index outbox_held_sent on outbox_held (topic) where sent;
