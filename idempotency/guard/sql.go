package guard

import (
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/internal/errtree"
	"github.com/effectonce/effectonce/outcome"
)

// ClassifySQL classifies the error of a transaction: ClassRetryable if the database has refused it with an SQLSTATE
// (pgx and lib/pq report one), or pgx could make no connection to it, else Unclassified. An error without an SQLSTATE
// may be that of a COMMIT whose reply was lost. So may one that ends the session: a server that waits for a standby has
// committed already when it is shut down. Another failure to dial may be that of a call after the COMMIT.
//
// It cannot see whose error it is, so a guard asks it only as Config.Classify: if all work is one transaction, in one
// database, and calls nothing after its COMMIT. Other work asks it about its transaction's error itself, and marks that
// with [outcome.Retryable].
func ClassifySQL(err error) outcome.Class {
	if state, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		if mayFollowCommit(state.SQLState()) {
			return outcome.Unclassified
		}
		return outcome.ClassRetryable
	}
	if noConnection(err) {
		return outcome.ClassRetryable
	}
	return outcome.Unclassified
}

// noConnection reports whether pgx could make no connection. It goes by the name of pgx's type: with the type, users of
// other databases would link pgx.
func noConnection(err error) bool {
	return errtree.Any(err, func(one error) bool { return fmt.Sprintf("%T", one) == "*pgconn.ConnectError" })
}

// mayFollowCommit reports whether a server may report the SQLSTATE although it has committed.
func mayFollowCommit(state string) bool {
	switch state {
	case "57P03": // cannot connect now
		return false
	case "40003", "25P04": // statement completion unknown, transaction timeout
		return true
	}
	if len(state) != 5 {
		return true
	}
	switch state[:2] {
	case "08", "58", "XX": // connection, system error, internal error
		return true
	}
	return state[:3] == "57P" // shutdown, crash
}
