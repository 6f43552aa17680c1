-- +goose Up
-- What is held of a parked key joins its list in the order of ids, part by part.
drop index outbox_held_key;
create index outbox_held_key on outbox_held (key_hash, id) where key <> '';

-- Whether a lane holds anything of a topic is one descent. Not by lane first, as before: a planner that takes the table for
-- empty would use it to find an id, and read the whole lane for each.
drop index outbox_held_drain;
create index outbox_held_drain on outbox_held (topic, lane, partition, seq);

-- A binary that knows less would send what is held of a parked key past its list.
comment on table outbox_event is 'effectonce: binaries from 10012 on';
