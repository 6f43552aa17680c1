-- +goose Up
-- What people did with operations that recovery had given up. No inputs, and no answers.
create table idempotency_audit (
	id        bigint generated always as identity primary key,
	at        timestamptz not null default clock_timestamp(),
	operator  text not null check (operator <> ''),
	action    text collate "C" not null,
	tenant    text collate "C" not null,
	operation text collate "C" not null,
	key       text collate "C" not null,
	reason    text not null check (reason <> ''),
	detail    jsonb not null
);
