package inbox

import (
	"context"
	"errors"
	"strings"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// failureKind is what a failed transaction means for the next one.
type failureKind uint8

const (
	canceled      failureKind = iota // the caller's context ended
	fatal                            // the consumer is registered otherwise: only another start helps
	rejected                         // the database rejects statements of the inbox or every effect: a person must look
	conflict                         // lost against another transaction
	contended                        // the same, in the effect or at COMMIT
	away                             // the database
	lost                             // the session ended in the effect: the database's doing, or the effect's
	commitUnknown                    // it may have happened
	dayMissing                       // a partition is not there
	stale                            // the cached state was old: the plan put an id into the wrong table
	refused                          // the id at index may not be decided
	unsure                           // the event at index may have been applied: it is given up without a run
	bounded                          // the list for the event at index is full
	skipping                         // the effect skipped after it had written
	failed                           // the effect; index -1: any of the events
	moved                            // the database is another one than the partition began with
)

// failure is why a transaction was not committed, or not known to be.
type failure struct {
	kind  failureKind
	index int   // of the event, where one is meant
	skips []int // skipping: events to leave out
	err   error

	rejects bool // failed: the database could not run a statement of the effect or of its triggers
}

// unknown reports whether the statement may have taken effect all the same, where it is a COMMIT or stands outside of a
// transaction.
func (f *failure) unknown() bool {
	return f.kind == canceled || f.kind == away || f.kind == commitUnknown
}

// silent: the server ended the session of a transaction that said nothing for too long. It did not commit, although a
// COMMIT may be what is answered so.
func silent(err error) bool {
	return pgerr.Is(err, pgerr.IdleInTransaction) || pgerr.Is(err, pgerr.TransactionTimeout)
}

// rejects: a statement names what the database does not have, or may not touch it (class 42).
func rejects(err error) bool { return strings.HasPrefix(pgerr.Code(err), "42") }

// classify sorts an error of the inbox's own statements.
func (in *Inbox) classify(ctx context.Context, err error) *failure {
	switch {
	case ctx.Err() != nil:
		return &failure{kind: canceled, err: ctx.Err()}
	case pgerr.Retry(err), pgerr.Is(err, pgerr.QueryCanceled):
		return &failure{kind: conflict, err: err}
	case silent(err):
		return &failure{kind: lost, index: -1, err: err}
	case pgerr.Is(err, pgerr.ReadOnlyTransaction), pgerr.Is(err, pgerr.ObjectNotInState):
		// A standby. Its connections would outlive the moment in which it was reached.
		in.db.Reset()
		return &failure{kind: away, err: err}
	case pgerr.Away(err):
		return &failure{kind: away, err: err}
	}
	return &failure{kind: rejected, err: advise(err)}
}

// advisedError is an error of the inbox's own statements, with what to do about it.
type advisedError struct {
	error
	advice string
}

// Error ends with the advice.
func (e *advisedError) Error() string { return e.error.Error() + " (" + e.advice + ")" }

// Unwrap returns what Postgres said.
func (e *advisedError) Unwrap() error { return e.error }

// advise adds once what to do when a grant or a table is missing.
func advise(err error) error {
	if _, advised := errors.AsType[*advisedError](err); advised {
		return err
	}
	switch {
	case pgerr.Is(err, pgerr.InsufficientPrivilege):
		return &advisedError{err, "`relay migrate --roles --print` has the grants that each role needs"}
	case pgerr.Is(err, pgerr.UndefinedTable):
		return &advisedError{err, "the tables are missing or older than this program: run `relay migrate` or " +
			"migrations.Up, and look at Config.Schema"}
	}
	return err
}
