// Package pgerr sorts the errors of Postgres by what the caller must do next. It never asks pgx's SafeToRetry, which
// has answered true for a COMMIT that did happen.
package pgerr

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that the rooms look at by name.
const (
	SerializationFailure  = "40001"
	CompletionUnknown     = "40003"
	DeadlockDetected      = "40P01"
	LockNotAvailable      = "55P03"
	QueryCanceled         = "57014"
	CheckViolation        = "23514"
	InvalidCursorName     = "34000"
	UniqueViolation       = "23505"
	UndefinedTable        = "42P01"
	UndefinedFunction     = "42883"
	UndefinedObject       = "42704"
	DuplicateTable        = "42P07"
	NoSuchKey             = "42P10" // of ON CONFLICT
	DivisionByZero        = "22012"
	Untranslatable        = "22P05" // a character that an encoding does not have
	InsufficientPrivilege = "42501"
	ObjectNotInState      = "55000"
	ReadOnlyTransaction   = "25006"
	DiskFull              = "53100"
	TooManyConnections    = "53300"
	LimitExceeded         = "53400" // temp_file_limit, for one
	CannotConnectNow      = "57P03" // the server starts, or is being shut down
	IdleInTransaction     = "25P03" // longer than idle_in_transaction_session_timeout: the session has ended
	TransactionTimeout    = "25P04" // longer than transaction_timeout: so has it
)

// Code returns the SQLSTATE of err, or "" when the server reported none.
func Code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// Is reports whether err carries the SQLSTATE code.
func Is(err error, code string) bool { return Code(err) == code }

// Absent reports whether a table or its schema is missing.
func Absent(err error) bool { return Is(err, UndefinedTable) || Is(err, "3F000") }

// Retry reports whether the whole transaction must simply run again: it lost against another one (serialization
// failure, deadlock), waited longer than lock_timeout for it, or sent a statement that was prepared before a table
// changed, which pgx prepares anew. Nothing of it was kept.
func Retry(err error) bool {
	switch Code(err) {
	case SerializationFailure, DeadlockDetected, LockNotAvailable:
		return true
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Routine == "RevalidateCachedQuery" // the code is that of any unsupported feature
}

// Away reports whether the database cannot be reached or cannot serve anybody now: wait and try again. It says nothing
// about what became of a statement that was under way; for a COMMIT see [CommitUnknown].
//
// A plain context error is not Away: it belongs to the caller. Code of users may return network errors of other
// systems, so Away is only meant for errors of our own statements.
func Away(err error) bool {
	if err == nil {
		return false
	}
	if code := Code(err); code != "" {
		return awayCode(code) || connecting(err)
	}
	if connecting(err) {
		return true
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return true
	}
	_, isNet := errors.AsType[net.Error](err)
	return isNet
}

// awayCode: class 08 is the connection, 53 is resources (disk full, too many connections), 57P an operator's shutdown
// or a server that starts. 25006 is a primary that has become a standby: the next connection may reach the new primary.
func awayCode(code string) bool {
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "53") || strings.HasPrefix(code, "57P") ||
		code == ReadOnlyTransaction
}

// Answered reports whether err is the server's answer to a statement, after which the session goes on. Its code may be
// any, also one of an outage: of a trigger, of a resource that this statement needs, or of another server behind it.
func Answered(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && isError(pg) && !connecting(err)
}

// Within reports whether err was raised within a function: that of a trigger, or one that the statement calls.
func Within(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Where != ""
}

// isError tells an ERROR, which ends a transaction at most, from a FATAL, which ends the session.
func isError(pg *pgconn.PgError) bool {
	// Severity is translated into the server's language, SeverityUnlocalized is not.
	return cmp.Or(pg.SeverityUnlocalized, pg.Severity) == "ERROR"
}

// connecting: whatever refuses a new connection, a rotated password included, is for people to repair while we wait.
func connecting(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// Refused says what to do if Postgres refuses a new connection; "" for every other error.
func Refused(err error) string {
	if !connecting(err) {
		return ""
	}
	switch Code(err) {
	case "28000", "28P01":
		return "Postgres refuses this user or password: look at both in the database's URL, and at pg_hba.conf"
	case "3D000":
		return "Postgres has no such database: look at the database's URL"
	case InsufficientPrivilege:
		return "the role may not connect to this database: grant connect on it"
	}
	return ""
}

// Unreached says what keeps a connection from Postgres, and what to do: its certificate, a pooler, the name of its
// host; "" for every other error.
func Unreached(err error) string {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "the certificate of Postgres has run out, or is not valid yet: renew it there, and compare the clocks"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the certificate of Postgres stands on another CA than sslrootcert's (without one: the system's)"
	}
	if wrong, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("the certificate of Postgres is not for %s: connect by a name that it has", wrong.Host)
	}
	if unknown, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Sprintf("the name %s leads to no address: look at the database's URL, and at this "+
			"machine's DNS", unknown.Name)
	}
	// PgBouncer ends a session with this code, Postgres a statement.
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "08P01" && pg.Severity == "FATAL" {
		return "the pooler before Postgres has no connection to it (" + pg.Message + "): SHOW POOLS in its console " +
			"says whether it is paused, full, or cut off"
	}
	return ""
}

var deniedFor = regexp.MustCompile(`^permission denied for (table|view|schema|sequence|function) (\S+)`)

// Denied says what a role may not read, and the grant that it lacks; "" for every other error.
func Denied(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != InsufficientPrivilege || connecting(err) {
		return ""
	}
	of := deniedFor.FindStringSubmatch(pg.Message)
	if of == nil { // in another language, or of a policy
		return pg.Message + "; grant to this role what `relay migrate --roles --print` has"
	}
	right := "select"
	switch of[1] {
	case "schema":
		right = "usage"
	case "function":
		right = "execute"
	}
	return pg.Message + "; grant " + right + " on " + of[1] + " " + of[2] + " to this role"
}

// CommitUnknown reports whether a COMMIT that returned err may have happened all the same. It is certain that it did
// not only when the server answered ROLLBACK or reported an ERROR; a FATAL one may follow a commit that is already
// durable here and waits for a standby.
func CommitUnknown(err error) bool {
	if err == nil || errors.Is(err, pgx.ErrTxCommitRollback) {
		return false
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || pg.Code == CompletionUnknown || !isError(pg)
}
