-- +goose Up
-- Whether producers may emit a lane's events into the WAL instead of inserting them. none: what they append is a row. open: they
-- may. closing: no more, and what was emitted is still published from the WAL. leaving: no more, and what was emitted and not
-- published becomes rows, so that the lane can go back to the table.
alter table outbox_streamed add column emitted text collate "C" not null default 'none'
	check (emitted in ('none', 'open', 'closing', 'leaving'));
