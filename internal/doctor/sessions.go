package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// slotTransactions is the age of a slot's horizon, in transactions, that is a warning.
const slotTransactions = 10_000_000

// sessions looks for what keeps dead rows, on the whole server.
func (f *findings) sessions(ctx context.Context, s Subject) {
	for _, look := range []struct {
		check string
		at    func(context.Context, *pgxpool.Pool, time.Duration) error
	}{
		{"oldest snapshot", f.snapshot},
		{"idle in transaction", f.idle},
		{"prepared transactions", f.prepared},
		{"replication slots", f.slots},
	} {
		if err := look.at(ctx, s.DB, s.LongTransaction); err != nil {
			f.failed(look.check, err)
		}
	}
}

func (f *findings) snapshot(ctx context.Context, db *pgxpool.Pool, long time.Duration) error {
	var pid, hidden int64 // hidden is the age of the oldest one of a session that the role may not see; -1: none
	var user, app, state string
	var seconds float64
	err := db.QueryRow(ctx, querySnapshot).Scan(&pid, &user, &app, &state, &seconds, &hidden)
	open := time.Duration(seconds * float64(time.Second))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		f.ok("oldest snapshot", "no other session has one")
	case err != nil:
		return err
	case open > long:
		f.add(Warn, "oldest snapshot", fmt.Sprintf("session %d (%s, %s, %s) has one since %v", pid, user, app, state,
			open.Round(time.Second)),
			"Dead rows that it might see cannot be vacuumed away. The relay's looks stay fast, its tables grow; "+
				"other tables suffer more.",
			fmt.Sprintf("Find out what it is; select pg_terminate_backend(%d) ends it.", pid))
	case hidden >= 0:
		f.skip("oldest snapshot", fmt.Sprintf("this role may not see since when sessions of other roles have one, %d "+
			"transactions old; grant pg_read_all_stats to it", hidden))
	default:
		f.ok("oldest snapshot", "since %v", open.Round(time.Second))
	}
	return nil
}

// forgotten is how long a session may do nothing in a transaction.
const forgotten = 30 * time.Second

func (f *findings) idle(ctx context.Context, db *pgxpool.Pool, long time.Duration) error {
	var count, pid, hidden int64
	var seconds float64
	var app string
	err := db.QueryRow(ctx, queryIdle, long.Seconds(), forgotten.Seconds()).Scan(&count, &pid, &seconds, &app, &hidden)
	if err != nil {
		return err
	}
	switch {
	case count == 0 && hidden > 0:
		f.add(Warn, "idle in transaction", fmt.Sprintf("%d sessions of other roles in this database are hidden from "+
			"this role", hidden),
			"A forgotten transaction among them would not be found: its events are not published before it commits, "+
				"and its locks hold others up.",
			"grant pg_read_all_stats to this role, or run `relay doctor` once as one that has it.")
		return nil
	case count == 0:
		f.ok("idle in transaction", "none for longer than %v", forgotten)
		return nil
	}
	f.add(Warn, "idle in transaction", fmt.Sprintf("%d sessions, the first is %d (%s) since %v", count, pid, app,
		time.Duration(seconds*float64(time.Second)).Round(time.Second)),
		"A transaction that was forgotten: its events are not published before it commits, its locks hold others up, "+
			"and the inbox cannot drop a day that it has read.",
		fmt.Sprintf("Mend the program; select pg_terminate_backend(%d) ends the session. "+
			"idle_in_transaction_session_timeout does so by itself.", pid))
	return nil
}

func (f *findings) prepared(ctx context.Context, db *pgxpool.Pool, long time.Duration) error {
	rows, err := db.Query(ctx, queryPrepared, long.Seconds())
	if err != nil {
		return err
	}
	var gid, database string
	var seconds float64
	found := 0
	if _, err := pgx.ForEachRow(rows, []any{&gid, &database, &seconds}, func() error {
		found++
		f.add(Warn, "prepared transactions", fmt.Sprintf("%q in database %s since %v", gid, database,
			time.Duration(seconds*float64(time.Second)).Round(time.Second)),
			"Nobody finishes it by himself: it keeps its locks and the oldest snapshot across restarts, and its "+
				"events wait.",
			fmt.Sprintf("In that database: commit prepared '%[1]s', or rollback prepared '%[1]s'; ask its "+
				"transaction manager first.", gid))
		return nil
	}); err != nil {
		return err
	}
	if found == 0 {
		f.ok("prepared transactions", "none for longer than %v", long)
	}
	return nil
}

// slot is a row of pg_replication_slots.
type slot struct {
	Name         string
	Database     string // empty: a physical slot
	Active       bool
	Transactions int64  // age of its horizon
	Keeps        bool   // it retains WAL
	WAL          string // wal_status
}

func (f *findings) slots(ctx context.Context, db *pgxpool.Pool, _ time.Duration) error {
	rows, err := db.Query(ctx, querySlots)
	if err != nil {
		return err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slot])
	if err != nil {
		return err
	}
	f.slotList(list)
	return nil
}

func (f *findings) slotList(list []slot) {
	const check = "replication slots"
	bad := 0
	for _, s := range list {
		next := fmt.Sprintf("Bring its reader back, or: select pg_drop_replication_slot('%s')", s.Name)
		if strings.HasPrefix(s.Name, "effectonce_") { // a relay's slot, which its outbox knows
			next = "`relay run --feed=wal` for database " + s.Database + "; or `relay wal drop` there, when no " +
				"relay is to read the WAL any more."
		}
		switch {
		case !s.Active && (s.Transactions > 0 || s.Keeps):
			bad++
			f.add(Warn, check, "nobody reads slot "+s.Name+", and it keeps WAL or snapshots",
				"The disk fills, and where it keeps snapshots dead rows stay.", next)
		case s.Transactions > slotTransactions, s.WAL == "unreserved", s.WAL == "lost":
			bad++
			f.add(Warn, check, fmt.Sprintf("slot %s keeps snapshots of %d transactions ago, its WAL is %s", s.Name,
				s.Transactions, s.WAL), "Its reader is far behind: the disk fills, and dead rows stay.", next)
		}
	}
	if bad == 0 {
		f.ok(check, "%d, none holds much back", len(list))
	}
}
