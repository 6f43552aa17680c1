package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// LimitWaits limits the waits for locks to three seconds, on the connections of a pool that only reads. Behind a pooler
// the setting would stay for the next client: there the caller's deadline ends the wait.
func LimitWaits(cfg *pgxpool.Config) {
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, queryLimitWaits, pgx.QueryExecModeExec, int64(conn.PgConn().PID()))
		return err
	}
}

// blocker is a session that locks one of our tables exclusively, or waits to.
type blocker struct {
	Tables   string
	PID      int64 // 0: a prepared transaction
	Has      bool
	WaitsFor string // sessions
	App      string
	State    string
	Seconds  float64 // since its transaction began
	Query    string
	IsHidden bool
}

func (b blocker) String() string {
	who := fmt.Sprintf("session %d", b.PID)
	switch {
	case b.PID == 0:
		return "a prepared transaction holds an ACCESS EXCLUSIVE lock on " + b.Tables
	case b.IsHidden:
		who += " (of another role; grant pg_read_all_stats to this one to see what it does)"
	default:
		who += fmt.Sprintf(" (application_name %q, %s, in its transaction since %v: %s)", b.App, b.State,
			time.Duration(b.Seconds*float64(time.Second)).Round(time.Second),
			strings.Join(strings.Fields(b.Query), " "))
	}
	if b.Has {
		return who + " holds an ACCESS EXCLUSIVE lock on " + b.Tables
	}
	return who + " wants an ACCESS EXCLUSIVE lock on " + b.Tables + ", and itself waits for " + b.WaitsFor
}

func readBlockers(ctx context.Context, db *pgxpool.Pool, schema string) ([]blocker, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	rows, err := db.Query(ctx, queryBlockers, tables, schema)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[blocker])
}

// waited reports whether err may have ended a wait for a lock.
func waited(err error) bool {
	switch pgerr.Code(err) {
	case pgerr.LockNotAvailable, pgerr.QueryCanceled, pgerr.TransactionTimeout:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// Blocked names the session that keeps others from reading the tables; "" if err did not end a wait, or there is none.
func Blocked(ctx context.Context, db *pgxpool.Pool, schema string, err error) string {
	if !waited(err) {
		return ""
	}
	list, err := readBlockers(ctx, db, schema)
	if err != nil || len(list) == 0 {
		return ""
	}
	return list[0].String()
}

// seeLocks is the advice for a check that may have waited too long for a lock.
const seeLocks = "See `locks`."

// Locks names the session that keeps others from reading the tables, if a check among the findings may have waited too
// long for it, and no finding names it.
func Locks(ctx context.Context, s Subject, of []Finding) []Finding {
	const check = "locks"
	f := findings{where: s.Flags, inSchema: s.Schema}
	if !slices.ContainsFunc(of, func(f Finding) bool { return f.Next == seeLocks }) ||
		slices.ContainsFunc(of, func(f Finding) bool { return f.Check == check }) {
		return nil
	}
	list, err := readBlockers(ctx, s.DB, s.Schema)
	if err != nil {
		f.failed(check, err)
	}
	for _, b := range list {
		next := fmt.Sprintf("Wait for it, or end it: select pg_terminate_backend(%d)", b.PID)
		if b.PID == 0 {
			next = "Commit it or roll it back: select * from pg_prepared_xacts"
		}
		f.add(Fail, check, b.String(), "Nobody reads or writes them meanwhile: producers, relays and workers wait.",
			next)
	}
	if len(list) == 0 && err == nil {
		f.add(Warn, check, "a look took too long, and by now no session has a table to itself", "Something was in "+
			"the way, or the server is slow.", "Examine again.")
	}
	return f.list
}
