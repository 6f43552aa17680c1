package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/sleep"
)

const dayPrefix = "inbox_message_"

// detachTimeout bounds one DETACH CONCURRENTLY, which waits for every transaction that used the table. One that is cut
// is finalized by the next pass.
const detachTimeout = time.Minute

// keeper makes and drops the days of one schema, as the tables' owner or through its functions.
type keeper struct {
	db          *pgxpool.Pool
	prefix      string
	window      dayNumber // of this process's consumer; 0: none
	ahead       int
	believe     bool // an operator says that the clock is right
	lockTimeout string
	log         *slog.Logger
}

func newKeeper(s settings, log *slog.Logger) *keeper {
	return &keeper{db: s.MaintenanceDB, prefix: s.prefix, window: s.windowDays, ahead: s.DaysAhead, lockTimeout: s.lockTimeout, log: log}
}

// days is what there is, as the database says it.
type days struct {
	prefix                      string // of the schema the table lives in, even when the Config names none
	today, dropped              dayNumber
	longest                     dayNumber // window of all consumers; 0: there is none
	attached, pending, detached []string
	released                    []dayNumber // of ids that an operator released
	owner                       bool        // this role may what the tables' owner may
	until                       dayNumber   // the last day until which the clock is believed; -1: any
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (k *keeper) read(ctx context.Context, db querier) (days, error) {
	var d days
	err := db.QueryRow(ctx, pgschema.Expand(sqlDays, k.prefix)).Scan(&d.prefix, &d.today, &d.dropped, &d.longest, &d.attached, &d.pending, &d.detached, &d.released, &d.owner, &d.until)
	if err != nil {
		return days{}, fmt.Errorf("inbox: reading the days: %w", err)
	}
	return d, nil
}

// missing lists the days that must exist and do not. Never one below dropped: an empty new day forgets what it knew.
// The consumer's row may hold another window than this process while a change of it is rolled out: the longer one
// counts.
func (k *keeper) missing(d days) (list []dayNumber) { return k.missingOf(d, true) }

// jumped: the clock has passed the last day that was made by more than the next one.
func (d *days) jumped() bool { return d.until >= 0 && d.today > d.until+1 }

// missingOf leaves out, unless all are meant, the days over which the clock has jumped: nobody knows whether there were
// any.
func (k *keeper) missingOf(d days, all bool) (list []dayNumber) {
	for n := max(d.today-max(d.longest, k.window), d.dropped); n <= d.today+dayNumber(k.ahead); n++ {
		if !slices.Contains(d.attached, dayPrefix+dayName(n)) && (all || !d.jumped() || n <= d.until || n >= d.today) {
			list = append(list, n)
		}
	}
	// A worker may lack the right to make the day of what it is to run, and waits for who has it.
	for _, n := range d.released {
		if n > d.today+dayNumber(k.ahead) && n <= d.today+farthest && !slices.Contains(d.attached, dayPrefix+dayName(n)) {
			list = append(list, n)
		}
	}
	return list
}

// makeDays makes what is missing. all: also the days over which the clock has jumped. Several processes may do so at
// once.
func (k *keeper) makeDays(ctx context.Context, all bool) (made []string, err error) {
	d, err := k.read(ctx, k.db)
	if err != nil {
		return nil, err
	}
	list := func(d days) []dayNumber { return k.missingOf(d, all) }
	if missing := list(d); len(missing) > 0 || k.believe {
		if made, err = k.makeMissing(ctx, list); pgerr.Is(err, pgerr.InsufficientPrivilege) {
			err = fmt.Errorf("inbox: %d days of inbox_message are missing and this role may not make them: give Config.MaintenanceDB a user with the maintainer's role or the owner's, or run `relay inbox maintain` as one of them from cron: %w", len(missing), err)
			if len(missing) > 0 && missing[0] > d.today {
				// Somebody else makes them and is late; nothing waits for them yet.
				k.log.Warn("inbox: days ahead are missing", "first", dayName(missing[0]), "error", err)
				return nil, nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return made, nil
}

// makeDay makes one day, for an id that an operator released; never one below dropped_before.
func (k *keeper) makeDay(ctx context.Context, n dayNumber) error {
	_, err := k.makeMissing(ctx, func(d days) []dayNumber {
		if n < d.dropped || slices.Contains(d.attached, dayPrefix+dayName(n)) {
			return nil
		}
		return []dayNumber{n}
	})
	if pgerr.Is(err, pgerr.InsufficientPrivilege) {
		return fmt.Errorf("inbox: day %s of inbox_message is missing and this role may not make it: give Config.MaintenanceDB a user with the maintainer's role or the owner's, or run `relay inbox maintain` as one of them: %w", dayName(n), err)
	}
	return err
}

// makeMissing makes the days of list, read again while no one else makes days or raises dropped_before. It blocks no
// insert.
func (k *keeper) makeMissing(ctx context.Context, list func(days) []dayNumber) (made []string, err error) {
	tx, err := k.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("inbox: making days: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, pgschema.Expand(sqlLockDays, k.prefix), k.lockTimeout); err != nil {
		return nil, fmt.Errorf("inbox: waiting to make days: %w", err)
	}
	d, err := k.read(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, n := range list(d) {
		_, err := tx.Exec(ctx, pgschema.Expand(sqlMakeDay, d.prefix), dayName(n))
		if err = failpoint.After(failpoint.InboxDayMade, err); err != nil {
			return nil, fmt.Errorf("inbox: making day %s: %w", dayName(n), err)
		}
		made = append(made, dayName(n))
	}
	if !d.jumped() || k.believe {
		if _, err := tx.Exec(ctx, pgschema.Expand(sqlBelieve, k.prefix), d.today+dayNumber(k.ahead)); err != nil {
			return nil, fmt.Errorf("inbox: believing the clock: %w", err)
		}
	}
	if err := failpoint.After(failpoint.InboxDaysMade, tx.Commit(ctx)); err != nil {
		return nil, fmt.Errorf("inbox: making days: %w", err)
	}
	if len(made) > 0 {
		k.log.Info("inbox: days made", "count", len(made), "first", made[0], "last", made[len(made)-1])
	}
	return made, nil
}

// raise moves dropped_before up to the longest window, and commits that before anything is dropped.
func (k *keeper) raise(ctx context.Context) error {
	err := pgx.BeginTxFunc(ctx, k.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pgschema.Expand(sqlLockDays, k.prefix), k.lockTimeout); err != nil {
			return fmt.Errorf("inbox: waiting to raise dropped_before: %w", err)
		}
		d, err := k.read(ctx, tx)
		if err != nil {
			return err
		}
		if d.jumped() {
			return fmt.Errorf("inbox: it is %s by the database's clock, and days were made until %s: the clock has jumped, or nobody has made days for long; "+
				"nothing is dropped; if the clock is right, run `relay inbox maintain --believe-clock`", dayName(d.today), dayName(d.until))
		}
		if _, err := tx.Exec(ctx, pgschema.Expand(sqlRaise, k.prefix)); err != nil {
			return fmt.Errorf("inbox: raising dropped_before: %w", err)
		}
		return failpoint.Err(failpoint.InboxRaise)
	})
	return failpoint.After(failpoint.InboxRaised, err)
}

// dropDays detaches and drops what lies below dropped_before, and finishes what an earlier pass left half done.
func (k *keeper) dropDays(ctx context.Context) (dropped []string, err error) {
	if err := k.raise(ctx); err != nil {
		return nil, err
	}
	d, err := k.read(ctx, k.db)
	if err != nil {
		return nil, err
	}
	if !d.owner {
		return k.dropForOwner(ctx, d)
	}
	for _, table := range d.pending {
		// First, for Postgres allows one pending detach per table.
		if err := k.detach(ctx, sqlFinalizeDay, d.prefix, table); err != nil {
			return nil, err
		}
		d.detached = append(d.detached, table)
	}
	for _, table := range d.attached {
		if !below(table, d.dropped) {
			continue
		}
		if err := k.detach(ctx, sqlDetachDay, d.prefix, table); err != nil {
			return dropped, err
		}
		d.detached = append(d.detached, table)
	}
	for _, table := range d.detached {
		if !below(table, d.dropped) {
			continue
		}
		if err := k.drop(ctx, d.prefix, table); err != nil {
			return dropped, err
		}
		dropped = append(dropped, strings.TrimPrefix(table, dayPrefix))
	}
	if len(dropped) > 0 {
		k.log.Info("inbox: days dropped", "days", dropped)
	}
	return dropped, nil
}

// dropForOwner drops through the owner's function, which needs a moment without a transaction on inbox_message.
func (k *keeper) dropForOwner(ctx context.Context, d days) (dropped []string, err error) {
	for _, table := range slices.Concat(d.pending, d.attached, d.detached) {
		if !below(table, d.dropped) {
			continue
		}
		day, pace, gone := strings.TrimPrefix(table, dayPrefix), pauses(100*time.Millisecond, 2*time.Second, 2), false
		for try := 1; !gone; try++ {
			err := k.db.QueryRow(ctx, pgschema.Expand(sqlDropDayFor, d.prefix), day).Scan(&gone)
			if err != nil && !pgerr.Is(err, pgerr.LockNotAvailable) {
				return dropped, fmt.Errorf("inbox: dropping day %s: %w", day, err)
			}
			if !gone && try == 10 {
				return dropped, fmt.Errorf("inbox: day %s was not dropped: transactions on inbox_message follow one another without a gap; "+
					"the next pass tries again, and `relay inbox maintain` as the tables' owner needs no gap", day)
			}
			if !gone && sleep.For(ctx, pace.NextBackOff()) != nil {
				return dropped, ctx.Err()
			}
		}
		dropped = append(dropped, day)
	}
	if len(dropped) > 0 {
		k.log.Info("inbox: days dropped", "days", dropped)
	}
	return dropped, nil
}

// detach takes one partition out, in a statement of its own: CONCURRENTLY forbids a transaction block.
func (k *keeper) detach(ctx context.Context, sql, prefix, table string) error {
	ctx, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	failpoint.Hit(failpoint.InboxDetach)
	_, err := k.db.Exec(ctx, dayText(sql, prefix, table))
	err = failpoint.After(failpoint.InboxDetached, err)
	if gone(err) {
		return nil // another process was quicker
	}
	if err != nil {
		return fmt.Errorf("inbox: detaching %s: %w", table, err)
	}
	return nil
}

func (k *keeper) drop(ctx context.Context, prefix, table string) error {
	var b pgx.Batch // one implicit transaction, for the lock time-out
	b.Queue(sqlDropLock, k.lockTimeout)
	b.Queue(dayText(sqlDropDay, prefix, table))
	err := failpoint.After(failpoint.InboxDayDropped, k.db.SendBatch(ctx, &b).Close())
	if err != nil && !gone(err) {
		return fmt.Errorf("inbox: dropping %s: %w", table, err)
	}
	return nil
}

// gone: the partition or table is not what it was a moment ago.
func gone(err error) bool {
	return pgerr.Is(err, pgerr.UndefinedTable) || pgerr.Is(err, pgerr.ObjectNotInState)
}

// dayText fills in a table's name that came from the catalogue.
func dayText(sql, prefix, table string) string {
	return strings.NewReplacer(pgschema.Placeholder, prefix, "{table}", pgx.Identifier{table}.Sanitize()).Replace(sql)
}

// below reports whether a table is a day before the given one. Any other table is left alone.
func below(table string, n dayNumber) bool {
	name, ok := strings.CutPrefix(table, dayPrefix)
	if !ok || len(name) != 8 {
		return false
	}
	if _, err := strconv.ParseUint(name, 10, 32); err != nil {
		return false
	}
	return name < dayName(n) // eight digits sort as the days do
}
