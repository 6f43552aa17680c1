package watermill

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

type (
	txKey    struct{}
	eventKey struct{}
)

var errNoTx = errors.New("watermill: no transaction in this context: wrap the handler with Inbox.Middleware or " +
	"Inbox.Handle and pass on its message's context, or put your own transaction into the context with WithTx")

// Tx returns the transaction of a handler within an [Inbox], in which the message's id is recorded: the handler must
// write through it. ctx is the message's context. Commit and Rollback return errors; Begin makes a savepoint. An error
// means that ctx has no transaction, which is a mistake in the program.
func Tx(ctx context.Context) (pgx.Tx, error) {
	if tx, ok := ctx.Value(txKey{}).(pgx.Tx); ok && tx != nil {
		return tx, nil
	}
	return nil, errNoTx
}

// WithTx returns a context from which [Tx] and [NewOutboxFromContext] take tx, for code that publishes within a
// transaction of its own, such as an HTTP handler.
func WithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// Event returns the event that an [Inbox] made of the message, with the ID that it records; false outside an Inbox.
func Event(ctx context.Context) (event.Event, bool) {
	e, ok := ctx.Value(eventKey{}).(event.Event)
	return e, ok
}
