package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// Effect is what an event does. It runs inside the transaction that records the event's id, so that both are kept or
// neither is; it must do everything through tx, and it may run again, see the package comment. Its error decides what
// happens next: [Skip], [Terminal], [Retryable], or any other, which is retried and then given up, as Config.OnFailure
// says.
//
// tx refuses Commit and Rollback; calling one fails the event. tx.Begin makes a savepoint, which may be committed and
// rolled back as usual.
type Effect func(ctx context.Context, tx pgx.Tx, e event.Event) error

// BatchEffect is an [Effect] for many events at once: only new ones, in log order, no id twice. An error that carries
// [At] names the event that failed; without a name the batch is split until the event stands alone. [Skip] skips the
// whole batch, At(i, Skip) one event, and errors.Join of several At skips several; what the run wrote is rolled back
// and the others run again.
type BatchEffect func(ctx context.Context, tx pgx.Tx, events []event.Event) error

// Skip is returned by an effect that wants nothing of an event: its id is recorded, and nothing that this effect wrote
// for it is kept. Return it before using tx: then it costs nothing, else the batch runs once more.
//
//lint:ignore ST1012 it is an instruction, not a failure: effects return inbox.Skip
var Skip = errors.New("inbox: skip this event")

// Codes of the errors that this package itself makes terminal.
const (
	// CodeUnknownType: [Types] has no effect for the event's type.
	CodeUnknownType = "unknown_type"
	// CodeMalformed: [JSON] could not parse the payload.
	CodeMalformed = "malformed"
	// CodeTransaction: the effect tried to end the inbox's transaction.
	CodeTransaction = "transaction_control"
)

// Terminal marks err as final: running the effect again cannot help. code says why in a machine's words, such as
// "unknown_account"; it is what metrics and the list of parked events show. A nil err stays nil.
func Terminal(code string, err error) error {
	if err == nil {
		return nil
	}
	return &terminalError{code: code, err: err}
}

// Retryable marks err as an outage of something else: the partition waits and tries again, for Config.MaxRetryFor,
// without counting attempts. A nil err stays nil.
func Retryable(err error) error {
	if err == nil {
		return nil
	}
	return &retryableError{err: err}
}

// At says that err is the error of the event with index i in the slice that a [BatchEffect] was given. A nil err stays
// nil.
func At(i int, err error) error {
	if err == nil {
		return nil
	}
	return &atError{index: i, err: err}
}

// TerminalCode returns the code of an error made by [Terminal], and false for any other.
func TerminalCode(err error) (string, bool) {
	if t, ok := errors.AsType[*terminalError](err); ok {
		return t.code, true
	}
	return "", false
}

// Types runs the effect of an event's type. The entry "*" is for types that are not in the map; func(...) error {
// return inbox.Skip } there ignores them. Without it an unknown type is [Terminal] with [CodeUnknownType]: the event is
// neither lost nor retried for ever, and is parked until it is released to a version that knows the type. m is not
// copied. A nil effect in it panics.
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
			return Terminal(CodeUnknownType, fmt.Errorf("no effect for events of type %q: add one to inbox.Types, or "+
				"an entry \"*\"", e.Type))
		}
		return do(ctx, tx, e)
	}
}

// JSON parses the payload into a T for do. A payload that is not the JSON of a T is [Terminal] with [CodeMalformed];
// the error never quotes it. Nor is a tombstone: where a topic has them, look for a nil Payload first. A nil do panics.
func JSON[T any](do func(ctx context.Context, tx pgx.Tx, e event.Event, v T) error) Effect {
	if do == nil {
		panic("inbox: JSON: the effect is nil")
	}
	return func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		v, err := event.DecodeJSON[T](e)
		if err != nil {
			return Terminal(CodeMalformed, err)
		}
		return do(ctx, tx, e, v)
	}
}

type terminalError struct {
	code string
	err  error
}

func (e *terminalError) Error() string { return e.code + ": " + e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }

type retryableError struct{ err error }

func (e *retryableError) Error() string { return e.err.Error() }
func (e *retryableError) Unwrap() error { return e.err }

type atError struct {
	index int
	err   error
}

func (e *atError) Error() string { return fmt.Sprintf("event %d of the batch: %v", e.index, e.err) }
func (e *atError) Unwrap() error { return e.err }

// named collects every At in the tree of err, not looking below one.
func named(err error, found []*atError) []*atError {
	switch e := err.(type) {
	case nil:
	case *atError:
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
