package pgtest

import (
	"testing"
	"time"
)

// awaitLimit is so long that a test fails on a wrong state, never on a slow machine.
const awaitLimit = 2 * time.Minute

// Await polls cond until it is true. It fails the test after awaitLimit or on an error. Prefer a signal, such as a
// channel or a hook, where there is one.
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
			t.Fatalf("await %s: still false after %v", what, awaitLimit)
		}
	}
}

// AwaitSQL polls a query that returns one boolean until it is true.
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

// AwaitBlocking waits until another session waits for a lock that backend pid holds.
func AwaitBlocking(t testing.TB, db *DB, pid uint32) {
	t.Helper()
	// A neighbour that creates a replication slot waits for every transaction of the server.
	AwaitSQL(t, db, "select exists (select from pg_stat_activity where datname = current_database() and "+
		"$1 = any (pg_blocking_pids(pid)))", int32(pid))
}

// AwaitDay waits, in the last moments of a day in UTC, for the next one: a test that names days would find others if
// one ended in its middle.
func AwaitDay(t testing.TB, db *DB) {
	t.Helper()
	// Less than awaitLimit, and more than such a test takes.
	AwaitSQL(t, db, "select date_trunc('day', now(), 'utc') = date_trunc('day', now() + interval '90 seconds', 'utc')")
}
