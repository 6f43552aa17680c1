package days

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/sleep"
)

// detachTimeout limits one DETACH CONCURRENTLY, which waits for every transaction that used the table. The next pass
// finalizes one that was cut.
const detachTimeout = time.Minute

// raise moves dropped_before up to the longest window, and commits that before any day is dropped.
func (k *Keeper) raise(ctx context.Context) error {
	return pgx.BeginTxFunc(ctx, k.DB, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pgschema.Expand(sqlLockDays, k.Prefix), k.LockTimeout); err != nil {
			return fmt.Errorf("inbox: waiting to raise dropped_before: %w", err)
		}
		d, err := k.read(ctx, tx)
		if err != nil {
			return err
		}
		if d.jumped() {
			return fmt.Errorf("inbox: it is %s by the database's clock, and days were made until %s: the clock has "+
				"jumped, or nobody has made days for long; "+
				"nothing is dropped; if the clock is right, run `relay inbox maintain --believe-clock`", Name(d.today),
				Name(d.until))
		}
		if _, err := tx.Exec(ctx, pgschema.Expand(sqlRaise, k.Prefix)); err != nil {
			return fmt.Errorf("inbox: raising dropped_before: %w", err)
		}
		return nil
	})
}

// Drop detaches and drops the days below dropped_before, and completes an interrupted earlier pass.
func (k *Keeper) Drop(ctx context.Context) (dropped []string, err error) {
	if err := k.raise(ctx); err != nil {
		return nil, err
	}
	d, err := k.read(ctx, k.DB)
	if err != nil {
		return nil, err
	}
	drop := k.dropAsOwner
	if !d.owner {
		drop = k.dropForOwner
	}
	dropped, err = drop(ctx, d)
	if len(dropped) > 0 {
		k.Log.Info("inbox: days dropped", "days", dropped)
	}
	return dropped, err
}

func (k *Keeper) dropAsOwner(ctx context.Context, d tables) (dropped []string, err error) {
	for _, table := range d.pending {
		// First, because Postgres allows one pending detach per table.
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
		dropped = append(dropped, strings.TrimPrefix(table, Prefix))
	}
	return dropped, nil
}

// dropForOwner drops days through the owner's function, which needs a moment without a transaction on inbox_message.
func (k *Keeper) dropForOwner(ctx context.Context, d tables) (dropped []string, err error) {
	for _, table := range slices.Concat(d.pending, d.attached, d.detached) {
		if !below(table, d.dropped) {
			continue
		}
		day, pace, gone := strings.TrimPrefix(table, Prefix), pauses(), false
		for try := 1; !gone; try++ {
			err := k.DB.QueryRow(ctx, pgschema.Expand(sqlDropDayFor, d.prefix), day).Scan(&gone)
			if err != nil && !pgerr.Is(err, pgerr.LockNotAvailable) {
				return dropped, fmt.Errorf("inbox: dropping day %s: %w", day, err)
			}
			if !gone && try == 10 {
				return dropped, fmt.Errorf("inbox: day %s was not dropped: transactions on inbox_message follow one "+
					"another without a gap; "+
					"the next pass tries again, and `relay inbox maintain` as the tables' owner needs no gap", day)
			}
			if !gone && sleep.For(ctx, pace.NextBackOff()) != nil {
				return dropped, ctx.Err()
			}
		}
		dropped = append(dropped, day)
	}
	return dropped, nil
}

// detach detaches one partition, in a statement of its own: CONCURRENTLY forbids a transaction block.
func (k *Keeper) detach(ctx context.Context, sql, prefix, table string) error {
	ctx, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	_, err := k.DB.Exec(ctx, dayText(sql, prefix, table))
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("inbox: detaching %s: %w", table, err)
	}
	return nil
}

func (k *Keeper) drop(ctx context.Context, prefix, table string) error {
	var b pgx.Batch // one implicit transaction, for the lock timeout
	b.Queue(sqlDropLock, k.LockTimeout)
	b.Queue(dayText(sqlDropDay, prefix, table))
	err := k.DB.SendBatch(ctx, &b).Close()
	if err != nil && !gone(err) {
		return fmt.Errorf("inbox: dropping %s: %w", table, err)
	}
	return nil
}

// gone reports whether another process has changed the partition or table in the meantime.
func gone(err error) bool {
	return pgerr.Is(err, pgerr.UndefinedTable) || pgerr.Is(err, pgerr.ObjectNotInState)
}

// dayText fills in the name of a table from the catalogue.
func dayText(sql, prefix, table string) string {
	return strings.NewReplacer(pgschema.Placeholder, prefix, "{table}", pgx.Identifier{table}.Sanitize()).Replace(sql)
}

// below reports whether a table is a day before the given one. It returns false for any other table.
func below(table string, n Number) bool {
	name, ok := strings.CutPrefix(table, Prefix)
	if !ok || len(name) != 8 {
		return false
	}
	if _, err := strconv.ParseUint(name, 10, 32); err != nil {
		return false
	}
	return name < Name(n) // eight digits sort as the days do
}
