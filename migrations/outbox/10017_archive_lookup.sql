-- +goose Up
-- What became of an event, by its message id. A UUIDv7 goes to the end of a day's index.
create index outbox_archive_message on outbox_archive (message_id);
