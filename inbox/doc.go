// Package inbox applies each event once per consumer: it commits the event's id and its effect in one transaction of
// the consumer's own Postgres database.
//
//	in, err := inbox.New(db, "ledger", inbox.Config{})
//	...
//	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
//		_, err := tx.Exec(ctx, `insert into ledger_entry ... on conflict do nothing`, ...)
//		return err
//	})
//
// A consumer (package consumer) passes batches of one partition to h and commits the offsets of the decided events. Run
// [Inbox.Run] next to the consumer: it creates and drops the day partitions in which ids are remembered, and runs the
// events that operators release.
//
// # The five duties of an effect
//
//  1. Do everything through the given tx. Package sqltx lends it to GORM, ent and other code for database/sql. A
//     rollback does not undo work done elsewhere (another connection, an HTTP call, a mail), and a retry repeats that
//     work. Record such work in tx, and let another process do it under a stable key. Settings and names (SET, SET
//     LOCAL, set_config, cursors, temporary tables) are allowed: once an effect of [Inbox.Each] uses one, each event
//     gets a transaction of its own, and a connection with what outlives it is closed. This goes by the statement's
//     text; an SQL function that changes settings must restore them, and so must a batch effect between its events.
//  2. Be ready to run again. A deadlock, a lost connection, a failed event of the same batch or an unknown COMMIT rolls
//     back the transaction, and the effect runs again for the same event. The rollback does not restore memory that the
//     effect changed.
//  3. Return the errors of tx, wrapped with %w, and stop after the first. The inbox needs them to tell a deadlock from
//     a bad event. Put a statement that may fail without failing the event under a savepoint: tx.Begin.
//  4. Classify errors: return [outcome.Terminal] when a retry cannot help, [outcome.Retryable] when another system is
//     down, and any other error when the cause is unknown. An event that finally fails is parked ([Config.OnFailure]).
//     Later events of its key are parked behind it, in order, until an operator releases or discards them (package
//     inbox/operator). Events of other keys are not affected.
//  5. Also protect the effect with a business key (for example, unique (entry_type, source_payment_id) and on conflict
//     do nothing). The inbox forgets ids after Config.Window, and an operator may have to apply an event by hand.
//
// # What is promised
//
// Within Config.Window, an effect is committed exactly once per (consumer, event id), even if the event is delivered
// twice, late, or to two processes at the same time: the second process waits for the row of the first and finds it.
// Events of a batch keep their order, and the events after an undecided event wait. An event is quarantined, alone,
// when its id belongs to a day that is no longer remembered or too far in the future: the inbox cannot tell whether it
// is new, so a person must decide. An event that kills its process every time is parked after [Config.CrashAttempts]
// counted runs. A counted run is alone in its process, for at most five seconds, so that a run that hangs does not stop
// the other partitions of the process.
//
// Ids that are UUIDv7 ([event.NewID], [event.Derive]) are stored in one partition per day, which is dropped as a whole.
// All other ids ([event.IntentID], foreign ids) are stored in one table that is cleaned row by row. Such an id is
// forgotten after the window: a later duplicate is applied again unless a business key (duty 5) prevents it.
//
// # Without a row for each event
//
// The numbers that a relay gives to events rise in the order of publishing, and a repeat has the number of the
// original. With Config.Dedup [ByWatermark], the inbox keeps the highest decided numbers in one row for each partition,
// and needs no ids, days or window. It is faster (docs/benchmarks.md), and gives the same guarantee within one
// incarnation of the outbox for a topic that only relays write to; see [ByWatermark] for the cases that need a person.
// [ByOffset] does the same for a topic with one foreign writer that never repeats a record. Attempts, parking and
// releases are the same for all three. [Inbox.ProcessTx] needs ids. `relay inbox move` moves a consumer from ids to
// another strategy.
//
// # The tables
//
// The migrations in migrations/inbox create the tables. The consumer's role needs SELECT, INSERT and DELETE on
// inbox_message and inbox_message_any, SELECT, INSERT, UPDATE and DELETE on inbox_parked_key and inbox_parked, SELECT,
// INSERT and UPDATE on inbox_consumer and inbox_progress, SELECT, INSERT and DELETE on inbox_watermark, SELECT on
// inbox_numbering, inbox_days and inbox_audit. The tables' owner creates and drops days; a role that may execute the
// owner's functions can do it too: use Config.MaintenanceDB, or run `relay inbox maintain` from cron. Through PgBouncer
// in transaction mode, set default_query_exec_mode=exec. All settings are SET LOCAL, and no lock outlives its
// transaction.
package inbox
