package outbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
)

// Queue is [Appender.Queue] of the zero Appender.
func Queue(ctx context.Context, batch *pgx.Batch, events ...event.Event) error {
	return Appender{}.Queue(ctx, batch, events...)
}

// Queue is [Appender.Append] as a part of the caller's batch: the events are sent with the statements of the business
// change, after those that are queued already, and cost no further round trip.
//
// Send the batch in the transaction of the business change (tx.SendBatch), after the locks that order its keys. A batch
// that is sent on a connection or pool outside of a transaction is a transaction of all its statements, unless it
// begins or commits others.
//
// An event that cannot be published is refused with an [*EventError], and nothing is queued. Queue adds one statement
// for all events, one more for those whose NotBefore is in the future, and one more for every further 10,000 events or
// 8 MiB. Errors of the database are in the batch's results, and the transaction must be rolled back. So are rows that a
// trigger has swallowed, unless the caller reads the results one by one: then queue the events last, and compare
// RowsAffected. Append is better for fifty events and more.
func (a Appender) Queue(ctx context.Context, into *pgx.Batch, events ...event.Event) error {
	if into == nil {
		return errors.New("outbox: batch is nil: queue within the batch of the business change")
	}
	return a.write(ctx, events, func(_ context.Context, b *batch) error {
		return b.statements(func(query string, args []any, events int) error {
			into.Queue(query, args...).Exec(func(tag pgconn.CommandTag) error {
				return took(tag.RowsAffected(), events)
			})
			return nil
		})
	})
}
