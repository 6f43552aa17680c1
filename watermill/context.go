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

// errNoTx is Tx's error.
var errNoTx = errors.New("watermill: no transaction in this context: wrap the handler with Inbox.Middleware or " +
	"Inbox.Handle and pass " +
	"the context of the message that it gets, or put your own transaction there with WithTx")

// Tx returns the transaction that a handler within an [Inbox] must do everything through: it also records the message's
// id. ctx is the context of the message. It refuses Commit and Rollback; its Begin makes a savepoint.
//
// The error says that there is none, which is a mistake in the program.
func Tx(ctx context.Context) (pgx.Tx, error) {
	if tx, ok := ctx.Value(txKey{}).(pgx.Tx); ok && tx != nil {
		return tx, nil
	}
	return nil, errNoTx
}

// WithTx returns a context from which [Tx] and [NewOutboxFromContext] take tx: for code that publishes within a
// transaction of its own, as a handler of an HTTP request does.
func WithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// Event returns the event that an [Inbox] made of a message, and false outside of one. Its ID is the one that is
// recorded.
func Event(ctx context.Context) (event.Event, bool) {
	e, ok := ctx.Value(eventKey{}).(event.Event)
	return e, ok
}
