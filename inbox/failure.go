package inbox

import (
	"context"
	"errors"
	"strings"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgsession"
)

// failureKind is the class of a failed transaction; it determines what follows.
type failureKind uint8

const (
	canceled        failureKind = iota // the caller's context ended
	fatal                              // the consumer's registration does not fit: only a restart helps
	rejected                           // the database rejects the inbox or every effect: an operator must act
	conflict                           // a conflict with another transaction
	contended                          // a conflict in the effect or at COMMIT
	away                               // the database is unreachable
	lost                               // the session or a statement failed in the effect, by the database or the effect
	commitUnknown                      // the COMMIT may have succeeded
	dayMissing                         // a day partition is missing
	stale                              // the cached state was old: the plan put an id into the wrong table
	undecidable                        // the event at index cannot be decided
	unsure                             // the event at index may have been applied: it is parked without a run
	bounded                            // the events before that at index go first; alone, it halts its partition
	skipping                           // the effect skipped an event after writing
	apart                              // the effect changed settings of a transaction that has more events
	failed                             // the effect failed; index -1: any of the events
	databaseChanged                    // the database is not the one in which the partition began
)

// failure is the reason why a transaction was not committed, or may not have been.
type failure struct {
	kind  failureKind
	index int   // of the event, for kinds that have one
	skips []int // for skipping: events to leave out
	err   error

	rejects bool // for failed: the database rejected a statement of the effect or its triggers
}

// unknown reports whether the statement may have taken effect anyway, if it is a COMMIT or runs outside of a
// transaction.
func (f *failure) unknown() bool {
	return f.kind == canceled || f.kind == away || f.kind == commitUnknown
}

// silent reports whether the server ended the session because its transaction was idle or ran too long. The transaction
// did not commit, even if this is the answer to a COMMIT.
func silent(err error) bool {
	return pgerr.Is(err, pgerr.IdleInTransaction) || pgerr.Is(err, pgerr.TransactionTimeout)
}

// rejects reports whether a statement names a missing object or lacks a right (class 42).
func rejects(err error) bool { return strings.HasPrefix(pgerr.Code(err), "42") }

// ofStandby reports whether an error of the inbox's own statements is what a standby answers.
func ofStandby(err error) bool {
	return pgerr.Is(err, pgerr.ReadOnlyTransaction) || pgerr.Is(err, pgerr.ObjectNotInState)
}

// classify returns the failure for an error of the inbox's own statements.
func (in *Inbox) classify(ctx context.Context, err error) *failure {
	switch {
	case ctx.Err() != nil:
		return &failure{kind: canceled, err: ctx.Err()}
	case pgerr.Retry(err), pgerr.Is(err, pgerr.QueryCanceled):
		return &failure{kind: conflict, err: err}
	case silent(err):
		return &failure{kind: lost, index: -1, err: err}
	case ofStandby(err):
		// Drop the connections, which would otherwise stay with it after a primary is available.
		in.db.Reset()
		return &failure{kind: away, err: err}
	case pgerr.Away(err):
		return &failure{kind: away, err: err}
	}
	return &failure{kind: rejected, err: advise(err)}
}

// advisedError is an error of the inbox's own statements with advice for the operator.
type advisedError struct {
	error
	advice string
}

// Error returns the message followed by the advice.
func (e *advisedError) Error() string { return e.error.Error() + " (" + e.advice + ")" }

// Unwrap returns the error of Postgres.
func (e *advisedError) Unwrap() error { return e.error }

// errGuard is the error of tables whose guard does not know the COMMIT of this program.
var errGuard = errors.New("inbox_guard takes the inbox's COMMIT for an effect's")

// advise adds advice, at most once, to an error about a missing right or table.
func advise(err error) error {
	if _, advised := errors.AsType[*advisedError](err); advised {
		return err
	}
	switch {
	case pgerr.Is(err, pgerr.InsufficientPrivilege):
		return &advisedError{err, "`relay migrate --roles --print` has the grants that each role needs"}
	case pgerr.Is(err, pgerr.UndefinedTable), pgerr.Is(err, pgerr.UndefinedFunction), errors.Is(err, errGuard):
		return &advisedError{err, "the tables are missing or older than this program: run `relay migrate` or " +
			"migrations.Up, and look at Config.Schema"}
	case pgerr.Is(err, pgerr.NoSuchKey):
		return &advisedError{err, "a table lacks its primary key or a unique index, as after half a restore: make it " +
			"again, and see `relay doctor`"}
	}
	return pgsession.Advise(err)
}
