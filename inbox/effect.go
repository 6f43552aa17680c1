package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/errtree"
	"github.com/effectonce/effectonce/outcome"
)

// Effect is the application's work for an event. It runs in the transaction that records the event's id, so that both
// are committed or neither is. It must do everything through tx, and it may run more than once; see the package
// comment. Its error decides what happens next:
//
//   - [Skip]: the event is recorded as ignored.
//   - [outcome.Terminal]: Config.OnFailure decides at once, and operators see the code.
//   - [outcome.Retryable]: the partition waits and runs the effect again for Config.MaxRetryFor, without counting
//     attempts.
//   - [outcome.Unknown]: the same. A guard of package idempotency returns it, and its key keeps the work from happening
//     twice. Work outside of tx without such a key may happen again.
//   - any other error: Config.OnFailure decides after Config.MaxAttempts.
//
// tx refuses Commit and Rollback; a call of either fails the event, and so does a COMMIT on tx.Conn(). tx.Begin creates
// a savepoint, which may be committed and rolled back as usual. Package sqltx gives code for database/sql the
// transaction as a *sql.Tx.
type Effect func(ctx context.Context, tx pgx.Tx, e event.Event) error

// BatchEffect is an [Effect] for several events at once: only new events, in log order, without duplicate ids. An error
// that carries [Of] names the failed event; otherwise the batch is split until the failed event is alone. [Skip] skips
// the whole batch, Of(e, Skip) skips one event, and errors.Join of several Of skips several. After a skip the writes of
// the run are rolled back, and the other events run again.
type BatchEffect func(ctx context.Context, tx pgx.Tx, events []event.Event) error

// Skip is returned by an effect that ignores an event: the event's id is recorded, and the effect's writes for it are
// rolled back. Returning Skip before using tx costs nothing; after it, the batch runs once more. It may be wrapped, but
// an error that is joined to it is a failure.
//
//lint:ignore ST1012 it is an instruction, not a failure: effects return inbox.Skip
var Skip = errors.New("inbox: skip this event")

// skips reports whether err is Skip, and nothing else is in its tree: the other part may be why nothing was done.
func skips(err error) bool {
	return errtree.Only(err, func(leaf error) bool { return errors.Is(leaf, Skip) })
}

// Codes of the terminal errors of this package.
const (
	// CodeUnknownType: [Types] has no effect for the event's type.
	CodeUnknownType = "unknown_type"
	// CodeMalformed: [JSON] could not parse the payload.
	CodeMalformed = "malformed"
	// CodeTransaction: the effect tried to end the inbox's transaction.
	CodeTransaction = "transaction_control"
)

// Of marks err as the error of one event of the slice given to a [BatchEffect], in whatever order the effect has put
// them. Of returns nil if err is nil.
func Of(e event.Event, err error) error {
	if err == nil {
		return nil
	}
	return &eventError{id: e.ID, position: e.Position, err: err}
}

// Types returns an Effect that runs the effect of the event's type. The entry "*" is for types that are not in the map;
// func(...) error { return inbox.Skip } as that entry ignores them. Without it, an unknown type is [outcome.Terminal]
// with [CodeUnknownType]: the event is parked, neither lost nor retried forever, until it is released to a version that
// knows the type. Types does not copy m. It panics if m has a nil effect.
func Types(m map[string]Effect) Effect {
	for name, do := range m {
		if do == nil {
			panic(fmt.Sprintf("inbox: Types: the effect of %q is nil", name))
		}
	}
	return func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		do := m[e.Type]
		if do == nil {
			do = m["*"]
		}
		if do == nil {
			return outcome.Terminal(CodeUnknownType, fmt.Errorf("no effect for events of type %q: add one to "+
				"inbox.Types, or an entry \"*\"", e.Type))
		}
		return do(ctx, tx, e)
	}
}

// JSON returns an Effect for the events of one type, that parses the payload into a T for do. An event of another type
// is [outcome.Terminal] with [CodeUnknownType], because its payload may parse as well; see [Types] for a topic with
// several types, or with some to skip. A payload that is not the JSON of a T, a tombstone included, is Terminal with
// [CodeMalformed]; the error never quotes the payload. For a topic with tombstones, check for a nil Payload before
// calling the Effect. JSON panics if do is nil.
func JSON[T any](typ string, do func(ctx context.Context, tx pgx.Tx, e event.Event, v T) error) Effect {
	if do == nil {
		panic("inbox: JSON: the effect is nil")
	}
	return func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.Type != typ {
			return outcome.Terminal(CodeUnknownType, fmt.Errorf("an event of type %q, and the effect is for %q: "+
				"inbox.Types takes several, and skips with an entry \"*\"", e.Type, typ))
		}
		v, err := event.DecodeJSON[T](e)
		if err != nil {
			return outcome.Terminal(CodeMalformed, err)
		}
		return do(ctx, tx, e, v)
	}
}

// eventError names its event by id and position: a log may have an id twice.
type eventError struct {
	id       uuid.UUID
	position event.Position
	err      error
}

func (e *eventError) Error() string { return fmt.Sprintf("event %s: %v", e.id, e.err) }
func (e *eventError) Unwrap() error { return e.err }

// named collects the Of errors in the tree of err, without descending into them.
func named(err error, found []*eventError) []*eventError {
	switch e := err.(type) {
	case nil:
	case *eventError:
		return append(found, e)
	case interface{ Unwrap() error }:
		return named(e.Unwrap(), found)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			found = named(one, found)
		}
	}
	return found
}
