// Package migrations creates and changes the tables of effectonce.
//
// From a program, or `relay migrate` from a shell:
//
//	conn, err := pgx.ParseConfig(url)
//	...
//	err = migrations.Up(ctx, conn, migrations.Options{Schema: "app"})
//
// Up may run in every instance at every start: callers queue, and with nothing pending it changes
// nothing. Programs that leave migrating to someone else call [Check] at start instead.
//
// # For a DBA
//
// [Print] (`relay migrate --print`) writes the same migrations as SQL to be read and run by hand:
//
//	relay migrate --print --schema app > effectonce.sql
//	psql -X -v ON_ERROR_STOP=1 -1 -f effectonce.sql
//
// The text records its versions in the table effectonce_migration, so that Up and Check see them as
// applied. The role that runs it owns the tables. It needs CREATE on the schema, or on the database
// when the schema is to be made. A table of another's with a name of ours is never touched: Up refuses.
//
// # Direct connection
//
// Migrations need a session: they hold an advisory lock and set lock_timeout and search_path. Connect
// to Postgres itself, not through PgBouncer in transaction mode. A pooler that drops search_path at
// connect is recognised and refused; one in transaction mode is warned about, and may keep the lock
// in one of its server connections until that is closed.
//
// # Versions
//
// There is one set of files per room: outbox (1xxxx), inbox (2xxxx) and idempotency (3xxxx). All share one
// version table, and a set can be added later. Files go up only; there is no way down that keeps events.
//
// Expand, then contract: a migration only adds, and what it makes superfluous goes with a later one,
// when no binary uses it any more. So migrate first, then roll the binaries. A migration that leaves
// older binaries behind says so, in a comment on a table of its set:
//
//	comment on table outbox_event is 'effectonce: binaries from 10007 on';
//
// [Check] goes by it: a binary runs on every later schema that still serves binaries which know no
// more migrations than it does. Binary N always runs on the schema of the next release. Where no
// comment is left (a dump made without), one migration more than the binary knows is accepted.
package migrations
