-- +goose Up
-- A planner that takes a table for empty finds all its indexes equally good, and a session keeps the plan. By the first of these a relay
-- looked an id up in all that was held, because it has the lane; by the second it read all that was parked in the order of ids, to find a
-- list. With + 0 only a statement that says so uses them.
drop index outbox_held_drain;
create index outbox_held_drain on outbox_held (topic, (lane + 0), partition, seq);
drop index outbox_parked_id;
create index outbox_parked_id on outbox_parked ((id + 0));
