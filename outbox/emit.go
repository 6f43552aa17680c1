package outbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Emit is [Appender.Emit] of the zero Appender.
func Emit(ctx context.Context, tx pgx.Tx, events ...event.Event) error {
	return Appender{}.Emit(ctx, tx, events...)
}

// Emit is [Appender.Append] without the table where that is possible: while a relay with relay.Config.Emitted reads the write-ahead log,
// events go into it as messages (pg_logical_emit_message), part of tx as a row would be, and nothing is inserted or deleted for
// them. They are published once, in the order of their keys, as what is appended is, also among events of the same key that were
// appended. Where that relay cannot take them, they are inserted as Append does: while no relay reads the log or there is no
// replication slot, in lanes that are published from the table because something of them is held, parked or paused, in transactions that
// are not READ COMMITTED, and when they have a NotBefore in the future. So it needs no other decision, and never fails for want of a relay.
//
// What it gives up is the fallback. The log is the only place of an emitted event until it is published: if the replication slot is
// lost before (dropped, overtaken by max_slot_wal_keep_size, gone with a server that failed over, or given up by relay wal drop
// --lose-emitted), what was emitted and not published is gone, and nothing in the database remembers it. Nor is it in the archive,
// in the backlog that relays report, or in a dump. Emit what can be told again from business rows; [Append] the rest.
//
// Checks, errors, ids and traces are Append's. A role needs what Append needs, and
//
//	grant select on app.outbox_streamed, app.outbox_wal to producer;
//	grant usage on sequence app.outbox_event_id_seq to producer;
//
// Whoever may execute pg_logical_emit_message, which is everybody unless it is revoked, can write what a relay with Config.Emitted publishes.
func (a Appender) Emit(ctx context.Context, tx pgx.Tx, events ...event.Event) (err error) {
	if tx == nil {
		return errors.New("outbox: tx is nil: emit within the transaction of the business change")
	}
	return a.emit(ctx, events, func(query string, args []any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	})
}

// EmitSQL is [Appender.Emit] for database/sql, with any Postgres driver.
func (a Appender) EmitSQL(ctx context.Context, tx SQLTx, events ...event.Event) (err error) {
	if tx == nil {
		return errors.New("outbox: tx is nil: emit within the transaction of the business change")
	}
	return a.emit(ctx, events, func(query string, args []any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

func (a Appender) emit(ctx context.Context, events []event.Event, exec func(query string, args []any) error) (err error) {
	_, batches, end, err := a.begin(ctx, "emit", events)
	defer func() { end(err) }()
	if err != nil {
		return err
	}
	for _, b := range batches {
		if b.later {
			err = b.statements(exec)
		} else {
			err = b.parts(func(from, to int) error {
				if to-from == 1 {
					return exec(pgschema.Expand(queryEmitOne, b.prefix), b.one(from))
				}
				return exec(pgschema.Expand(queryEmitMany, b.prefix), b.many(from, to))
			})
		}
		if err = failpoint.After(failpoint.OutboxInserted, err); err != nil {
			return err
		}
	}
	return nil
}
