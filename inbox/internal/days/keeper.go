package days

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Keeper creates and drops the days of one schema, as the tables' owner or through the owner's functions.
type Keeper struct {
	DB          *pgxpool.Pool
	Prefix      string // the prefix of the schema, as pgschema makes it
	Window      Number // of this process's consumer; 0: none
	Ahead       int    // how many days are created in advance
	Believe     bool   // an operator says that the clock is right
	LockTimeout string // in the format of Postgres; "": the session's setting
	Log         *slog.Logger
}

// tables is the state of the day tables in the database.
type tables struct {
	prefix                      string // of the tables' schema, even if the Config names none
	today, dropped              Number
	longest                     Number // the longest window of all consumers; 0: no consumer
	attached, pending, detached []string
	released                    []Number // days of ids that an operator released
	owner                       bool     // this role has the rights of the tables' owner
	others                      string   // the default partition, which there must not be
	until                       Number   // the last day until which the clock is believed; -1: any
}

// pauses returns a growing wait with jitter and without an end.
func pauses() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0.2),
		backoff.WithMaxElapsedTime(0))
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (k *Keeper) read(ctx context.Context, db querier) (tables, error) {
	var d tables
	err := db.QueryRow(ctx, pgschema.Expand(sqlDays, k.Prefix)).Scan(&d.prefix, &d.today, &d.dropped, &d.longest,
		&d.attached, &d.pending, &d.detached, &d.released, &d.owner, &d.until, &d.others)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNoRow
	}
	if err != nil {
		return tables{}, fmt.Errorf("inbox: reading the days: %w", err)
	}
	return d, nil
}

// jumped reports whether the clock is past the day after the last day until which it is believed.
func (d *tables) jumped() bool { return d.until >= 0 && d.today > d.until+1 }

// missing returns the days that must exist and do not. It never returns a day below dropped: an empty day would forget
// the ids of the dropped one. During the rollout of a new window, the window in the consumer's row and that of this
// process differ: the longer one counts. Unless all is set, days over which the clock has jumped are left out: they may
// never have taken place.
func (k *Keeper) missing(d tables, all bool) (list []Number) {
	for n := max(d.today-max(d.longest, k.Window), d.dropped); n <= d.today+Number(k.Ahead); n++ {
		if !slices.Contains(d.attached, Prefix+Name(n)) && (all || !d.jumped() || n <= d.until || n >= d.today) {
			list = append(list, n)
		}
	}
	// The worker that runs a released event may lack the right to create its day. It then waits for a process that may.
	for _, n := range d.released {
		if n > d.today+Number(k.Ahead) && n <= d.today+farthest && !slices.Contains(d.attached, Prefix+Name(n)) {
			list = append(list, n)
		}
	}
	return list
}

// ErrAltered is the error for what others have made of the days. Days that were made, and are gone with their ids, are
// not made again: in an empty day each id is new.
var ErrAltered = errors.New("inbox: something else has altered the days of inbox_message")

// forgotten reports whether a missing day was made, and is gone with its ids. Until dropped_before is first raised,
// days of the past may never have been made.
func (d *tables) forgotten(n Number) bool {
	return n <= d.until && (n == d.today || n < d.today && d.dropped > 0) && !d.apart(n)
}

// apart reports whether a missing day is detached.
func (d *tables) apart(n Number) bool { return slices.Contains(d.detached, Prefix+Name(n)) }

func (d *tables) notMade(n Number) bool { return d.forgotten(n) || d.apart(n) }

// altered returns [ErrAltered] with what to do, or nil.
func (d *tables) altered(missing []Number) error {
	var names, empty, advice []string
	last := Number(0)
	for _, n := range missing {
		switch {
		case d.forgotten(n):
			names, last = append(names, Name(n)), n
			empty = append(empty, fmt.Sprintf("%sinbox_make_day('%s')", d.prefix, Name(n)))
		case d.apart(n):
			advice = append(advice, fmt.Sprintf("%s%s is detached: alter table inbox_message attach partition %s%s "+
				"for values from ('%s') to ('%s')", Prefix, Name(n), Prefix, Name(n), lowest(n), lowest(n+1)))
		}
	}
	if len(names) > 0 {
		advice = append(advice, fmt.Sprintf("%s are gone with the ids of their events: restore them from a backup "+
			"and attach them; or make them empty, so that an event of theirs that comes a second time is applied a "+
			"second time: select %s; or give them up with all earlier ones, so that their events are quarantined: "+
			"update inbox_days set dropped_before = '%s'", strings.Join(names, ", "), strings.Join(empty, ", "),
			Name(last+1)))
	}
	if t := d.others; t != "" {
		advice = append(advice, fmt.Sprintf("%s is a default partition, beside which days can neither be made nor "+
			"dropped: alter table inbox_message detach partition %s; run `relay inbox maintain`; insert into "+
			"inbox_message select * from %s on conflict do nothing; drop table %s", t, t, t, t))
	}
	if len(advice) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrAltered, strings.Join(advice, "; and "))
}

// lowest returns the lowest UUID of a day, as the bound of its partition.
func lowest(n Number) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(n)*24*60*60*1000<<16)
	return id
}

// Make creates the missing days and returns their names. all includes the days over which the clock has jumped. It
// returns [ErrAltered] after it has made the others. Several processes may call it at once.
func (k *Keeper) Make(ctx context.Context, all bool) (made []string, err error) {
	d, err := k.read(ctx, k.DB)
	if err != nil {
		return nil, err
	}
	list := func(d tables) []Number { return slices.DeleteFunc(k.missing(d, all), d.notMade) }
	missing, altered := list(d), d.altered(k.missing(d, true))
	if len(missing) == 0 && !k.Believe {
		return nil, altered
	}
	made, err = k.makeMissing(ctx, list)
	if pgerr.Is(err, pgerr.InsufficientPrivilege) && len(missing) > 0 && missing[0] > d.today {
		// Another role creates them and is late. No event waits for them yet.
		k.Log.Warn("inbox: days ahead are missing", "first", Name(missing[0]), "count", len(missing), "error", err)
		return nil, altered
	}
	return made, cmp.Or(err, altered)
}

// MakeDay creates the day of an id that an operator released, but never a day below dropped_before.
func (k *Keeper) MakeDay(ctx context.Context, n Number) error {
	var altered error
	_, err := k.makeMissing(ctx, func(d tables) []Number {
		if n < d.dropped || slices.Contains(d.attached, Prefix+Name(n)) {
			return nil
		}
		altered = d.altered([]Number{n})
		return slices.DeleteFunc([]Number{n}, d.notMade)
	})
	return cmp.Or(err, altered)
}

// makeMissing creates the days of list, which it calls while no other process creates days or raises dropped_before. It
// blocks no insert.
func (k *Keeper) makeMissing(ctx context.Context, list func(tables) []Number) (made []string, err error) {
	tx, err := k.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("inbox: making days: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, pgschema.Expand(sqlLockDays, k.Prefix), k.LockTimeout); err != nil {
		return nil, fmt.Errorf("inbox: waiting to make days: %w", err)
	}
	d, err := k.read(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, n := range list(d) {
		_, err := tx.Exec(ctx, pgschema.Expand(sqlMakeDay, d.prefix), Name(n))
		if pgerr.Is(err, pgerr.InsufficientPrivilege) {
			return nil, fmt.Errorf("inbox: day %s of inbox_message is missing and this role may not make it: give "+
				"Config.MaintenanceDB a user with the maintainer's role or the owner's, or run `relay inbox maintain` "+
				"as one of them from cron: %w", Name(n), err)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("inbox: making day %s: %w", Name(n), err), d.altered(nil))
		}
		made = append(made, Name(n))
	}
	if !d.jumped() || k.Believe {
		if _, err := tx.Exec(ctx, pgschema.Expand(sqlBelieve, k.Prefix), d.today+Number(k.Ahead)); err != nil {
			return nil, fmt.Errorf("inbox: believing the clock: %w", err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, fmt.Errorf("inbox: making days: %w", err)
	}
	if len(made) > 0 {
		k.Log.Info("inbox: days made", "count", len(made), "first", made[0], "last", made[len(made)-1])
	}
	return made, nil
}

// cleanBatch is how many rows of inbox_message_any one transaction deletes.
const cleanBatch = 5000

// Clean deletes rows of inbox_message_any that are older than their consumer's window, in small transactions.
func (k *Keeper) Clean(ctx context.Context) (total int64, err error) {
	rows, err := k.DB.Query(ctx, pgschema.Expand(sqlConsumers, k.Prefix))
	if err != nil {
		return 0, fmt.Errorf("inbox: reading the consumers: %w", err)
	}
	type window struct {
		Consumer string
		Days     int32
	}
	consumers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[window])
	if err != nil {
		return 0, fmt.Errorf("inbox: reading the consumers: %w", err)
	}
	for _, c := range consumers {
		for {
			n, err := k.cleanOnce(ctx, c.Consumer, c.Days)
			total += n
			if err != nil {
				return total, fmt.Errorf("inbox: cleaning inbox_message_any of %q: %w", c.Consumer, err)
			}
			if n < cleanBatch {
				break
			}
		}
	}
	if total > 0 {
		k.Log.Info("inbox: inbox_message_any cleaned", slog.Int64("rows", total))
	}
	return total, nil
}

func (k *Keeper) cleanOnce(ctx context.Context, consumer string, windowDays int32) (n int64, err error) {
	err = pgx.BeginTxFunc(ctx, k.DB, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, pgschema.Expand(sqlLockClean, k.Prefix)).Scan(&mine); err != nil || !mine {
			return err
		}
		tag, err := tx.Exec(ctx, pgschema.Expand(sqlCleanAny, k.Prefix), consumer, windowDays, cleanBatch)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// Through returns the last day that has a partition, counted from today without a gap; yesterday if today has none.
func Through(partitions []string, today Number) Number {
	for slices.Contains(partitions, Prefix+Name(today)) {
		today++
	}
	return today - 1
}

// Gaps returns how many days after today have a partition without a gap (-1: today has none), the days within the
// longest window that have none, including today, the partitions whose DETACH was interrupted, and [ErrAltered].
func Gaps(ctx context.Context, db *pgxpool.Pool, prefix string) (ahead int, missing, pending []string, altered,
	err error,
) {
	k := Keeper{DB: db, Prefix: prefix}
	have, err := k.read(ctx, db)
	if err != nil {
		return 0, nil, nil, nil, err
	}
	list := k.missing(have, true) // Ahead is 0, so only days up to today count
	for _, n := range list {
		missing = append(missing, Name(n))
	}
	return int(Through(have.attached, have.today) - have.today), missing, have.pending, have.altered(list), nil
}
