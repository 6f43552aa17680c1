// Package inbox applies every event once per consumer: the event's id and its effect are committed together, in the
// consumer's own Postgres.
//
//	in, err := inbox.New(db, "ledger", inbox.Config{})
//	...
//	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
//		_, err := tx.Exec(ctx, `insert into ledger_entry ... on conflict do nothing`, ...)
//		return err
//	})
//
// A consumer (package consumer) feeds h with batches of one partition and commits the offsets of what it decided.
// [Inbox.Run] belongs beside it: it makes and drops the days in which ids are remembered, and runs what operators
// release.
//
// # The five duties of an effect
//
//  1. Do everything through the tx you are given. What goes elsewhere (another connection, an HTTP call, a mail) is not
//     undone when the transaction rolls back, and is done again when it runs again. Write down in tx what is to be
//     done, and let another process do it under a stable key.
//  2. Be ready to run again. A deadlock, a lost connection, a failing neighbour in the batch or an unknown COMMIT rolls
//     the transaction back and runs the effect once more for the same event. Memory that the effect changed is not
//     rolled back.
//  3. Return the errors of tx, wrapped with %w, and do not go on after one. That is how a deadlock is told from a bad
//     event. What may fail without failing the event goes behind a savepoint: tx.Begin.
//  4. Say what kind of error it is: [Terminal] when running again cannot help, [Retryable] when something else is down,
//     any other error when you do not know. An event that is given up is parked ([Config.OnFailure]), and every later
//     event of its key goes behind it, in order, until an operator releases or discards them (package
//     inbox/operator). Other keys go on.
//  5. Put a business key behind the effect as well (unique (entry_type, source_payment_id), say, and on conflict do
//     nothing). The inbox forgets after Config.Window, and an operator may have to apply something by hand.
//
// # What is promised
//
// Within Config.Window, an effect is committed exactly once per (consumer, event id), whatever is delivered twice,
// late, or to two processes at the same time: the second one waits for the first one's row and finds it. The order
// within a batch is kept, and what stands behind an undecided event waits. An event whose id is of a day that is no
// longer remembered, or of one too far in the future, is never taken for a new one: it is quarantined, alone, until a
// person has looked. An event that kills its process every time is parked after [Config.CrashAttempts] counted runs, in
// which it is alone, for five seconds at most: one that hangs does not stop the other partitions of its process.
//
// Ids that are UUIDv7 ([event.NewID], [event.Derive]) live in a partition per day, which is dropped whole. All others
// ([event.IntentID], foreign ids) live in one table that is cleaned row by row, and are forgotten after the window: a
// later duplicate of such an id is applied again, which duty 5 catches.
//
// # Without a row for an event
//
// What a relay publishes has numbers that rise in the order of publishing, and repeats carry theirs again. Config.Dedup
// [ByWatermark] goes by them: one row for each partition says how far they are decided, and ids, their days and the
// window are not needed. It is faster (docs/benchmarks.md), and promises the same for a topic that only relays write,
// within one incarnation of the outbox; see there what it leaves to a person. [ByOffset] does the same for a topic of
// one foreign writer who never repeats a record. Attempts, parking and releases are the same for all three.
// [Inbox.ProcessTx] needs ids. A consumer that went by ids is moved with `relay inbox move`.
//
// # The tables
//
// migrations/inbox makes them. The consumer's role needs SELECT, INSERT and DELETE on inbox_message and
// inbox_message_any, SELECT, INSERT, UPDATE and DELETE on inbox_parked_key and inbox_parked, SELECT, INSERT and UPDATE
// on inbox_consumer and inbox_progress, SELECT, INSERT and DELETE on inbox_watermark, SELECT on inbox_numbering and
// inbox_days. Days are made and dropped by the tables' owner, or through its functions by a role that may execute them:
// Config.MaintenanceDB, or `relay inbox maintain` from cron. Through PgBouncer in transaction mode set
// default_query_exec_mode=exec; every setting is SET LOCAL and no lock outlives its transaction.
package inbox
