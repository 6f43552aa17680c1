-- +goose Up
-- The last day that was made while the clock was believed. A clock beyond it has jumped, or nobody has made days for longer than
-- they are made ahead: nothing is dropped and no id is too old by such a clock, until somebody says that it is right. Null: no day yet.
alter table inbox_days add column believed_until date;
