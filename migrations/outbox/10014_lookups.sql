-- +goose Up
-- A parked event by its id, and the next page of a list of them.
create index outbox_parked_id on outbox_parked (id);

-- Without a key, rows of a table that a publication covers cannot be deleted; FOR ALL TABLES covers this one.
alter table outbox_archive_default replica identity full;
