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
	if b.Has {
		return b.who() + " holds an ACCESS EXCLUSIVE lock on " + b.Tables
	}
	return b.who() + " wants an ACCESS EXCLUSIVE lock on " + b.Tables + ", and itself waits for " + b.WaitsFor
}

func (b blocker) who() string {
	switch {
	case b.PID == 0:
		return "a prepared transaction"
	case b.IsHidden:
		return fmt.Sprintf("session %d (of another role; grant pg_read_all_stats to this one to see what it does)",
			b.PID)
	}
	return fmt.Sprintf("session %d (application_name %q, %s, in its transaction since %v: %s)", b.PID, b.App, b.State,
		time.Duration(b.Seconds*float64(time.Second)).Round(time.Second), strings.Join(strings.Fields(b.Query), " "))
}

// next is how to end what a session or a prepared transaction has.
func (b blocker) next() string {
	if b.PID == 0 {
		return "Commit it or roll it back: select * from pg_prepared_xacts"
	}
	return fmt.Sprintf("Wait for it, or end it: select pg_terminate_backend(%d)", b.PID)
}

// waits names the sessions that others wait for: with a lock that lets readers pass, such as that of create index, or
// with rows that they have changed.
func (f *findings) waits(ctx context.Context, s Subject) {
	const check = "waits"
	rows, err := s.DB.Query(ctx, queryWaits, tables, s.Schema)
	if err != nil {
		f.failed(check, err)
		return
	}
	var b blocker
	var count int64
	var waited float64
	before := len(f.list)
	_, err = pgx.ForEachRow(rows, []any{&b.PID, &count, &waited, &b.App, &b.State, &b.Seconds, &b.Query, &b.IsHidden},
		func() error {
			longest := time.Duration(waited * float64(time.Second))
			severity := Warn
			if longest > waitsLong {
				severity = Fail
			}
			f.add(severity, check, fmt.Sprintf("for %s others wait, %d sessions, the first since %v", b.who(), count,
				longest.Round(time.Second)), "It has a table or rows that producers, relays or workers want to write.",
				b.next())
			return nil
		})
	switch {
	case err != nil:
		f.failed(check, err)
	case len(f.list) == before:
		f.ok(check, "no session waits for another one's lock for long")
	}
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
		f.add(Fail, check, b.String(), "Nobody reads or writes them meanwhile: producers, relays and workers wait.",
			b.next())
	}
	if len(list) == 0 && err == nil {
		f.add(Warn, check, "a look took too long, and by now no session has a table to itself", "Something was in "+
			"the way, or the server is slow.", "Examine again.")
	}
	return f.list
}
