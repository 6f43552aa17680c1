package pgtest

import (
	"testing"
	"time"
)

// awaitLimit is far beyond what any condition needs, for a test must fail on a wrong state and never on a slow machine.
const awaitLimit = 2 * time.Minute

// Await polls cond until it is true, and fails the test after a minute or at an error. It is the one place where tests
// wait on time: a test that can be told (a channel, a hook) should be told.
func Await(t testing.TB, what string, cond func() (bool, error)) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(awaitLimit)
	defer limit.Stop()
	for {
		ok, err := cond()
		if err != nil {
			t.Fatalf("await %s: %v", what, err)
		}
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("await %s: not after %v", what, awaitLimit)
		}
	}
}

// AwaitSQL polls a query that gives one boolean until that is true; what is the query itself.
func AwaitSQL(t testing.TB, db *DB, sql string, args ...any) {
	t.Helper()
	Await(t, sql, func() (bool, error) {
		var ok bool
		err := db.Pool.QueryRow(t.Context(), sql, args...).Scan(&ok)
		return ok, err
	})
}

// AwaitBlocked waits until backend pid waits for a lock.
func AwaitBlocked(t testing.TB, db *DB, pid uint32) {
	t.Helper()
	AwaitSQL(t, db, "select cardinality(pg_blocking_pids($1)) > 0", int32(pid))
}

// AwaitBlocking waits until another session of the server waits for a lock that backend pid holds. What others' tests
// wait for does not count, as it would in a search by statements.
func AwaitBlocking(t testing.TB, db *DB, pid uint32) {
	t.Helper()
	AwaitSQL(t, db, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(pid))
}
