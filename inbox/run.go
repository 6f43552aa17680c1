package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/sleep"
)

// cleanBatch is how many rows of inbox_message_any one transaction deletes.
const cleanBatch = 5000

// boundEvery is how often the lists of parked keys are measured.
const boundEvery = 15 * time.Second

// Run keeps the inbox's days: it makes them ahead of time, drops those that every consumer's window has left, and
// cleans inbox_message_any, every Config.MaintainEvery, sooner after a failure. And it runs what operators released,
// every Config.ReleaseEvery. It returns nil when ctx ends. Run it in every process of the consumer, beside the consumer
// that has the effect; they tolerate each other.
func (in *Inbox) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { in.repeat(ctx, "moving the progress", progressEvery/2, in.accounts) })
	group.Go(func() { in.repeat(ctx, "measuring the lists", boundEvery, in.bound) })
	group.Go(func() { in.repeat(ctx, "saying who runs", presentEvery, in.present) })
	if in.cfg.ReleaseEvery > 0 {
		group.Go(func() { in.repeat(ctx, "releasing", in.cfg.ReleaseEvery, in.release) })
	}
	if in.cfg.MaintainEvery < 0 {
		<-ctx.Done()
		return nil
	}
	in.repeat(ctx, "maintenance", in.cfg.MaintainEvery, in.Maintain)
	return nil
}

// repeat does something now and every so often until ctx ends; what fails is done again after a growing pause.
func (in *Inbox) repeat(ctx context.Context, what string, every time.Duration, do func(context.Context) error) {
	pace := pauses(time.Second, 5*time.Minute, 3)
	for {
		wait := every
		if err := do(ctx); err != nil && ctx.Err() == nil {
			if wait = pace.NextBackOff(); what == "maintenance" {
				wait = min(wait, every)
			}
			in.log.Error("inbox: "+what+" failed", "again_in", wait, "error", err)
		} else {
			pace.Reset()
		}
		if sleep.For(ctx, wait) != nil {
			return
		}
	}
}

// bound marks the keys whose list is as long as it may be, and unmarks those whose list is shorter again.
func (in *Inbox) bound(ctx context.Context) error {
	if in.cfg.ParkedPerKey < 0 {
		return nil
	}
	rows, err := in.db.Query(ctx, pgschema.Expand(sqlBound, in.cfg.prefix), in.consumer, in.cfg.ParkedPerKey)
	if err != nil {
		return fmt.Errorf("inbox: measuring the lists of parked keys: %w", err)
	}
	changed, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if len(changed) > 0 {
		failpoint.Hit(failpoint.InboxListsMeasured)
	}
	if err != nil {
		return fmt.Errorf("inbox: measuring the lists of parked keys: %w", err)
	}
	full := 0
	for _, f := range changed {
		if f {
			full++
		}
	}
	// Where lists are shorter again, or gone, their partitions go on; one that halted for another list halts again.
	if err := in.unhalt(ctx, CodeListFull, full < len(changed)); err != nil {
		return fmt.Errorf("inbox: resuming the partitions of lists that are shorter again: %w", err)
	}
	if full > 0 {
		in.log.Error("inbox: the lists of parked keys are full: their partitions halt until events are released or discarded",
			"keys", full, "bound", in.cfg.ParkedPerKey)
	}
	return nil
}

// Maintain is one pass of what Run does. A pass that fails half-way has done no harm and is finished by the next.
func (in *Inbox) Maintain(ctx context.Context) error {
	err := in.Prepare(ctx)
	var info MaintainedInfo
	if err == nil {
		info, err = in.keeper.pass(ctx)
		err = errors.Join(err, in.bound(ctx))
	}
	info.Err = err
	if do := in.cfg.Observer.Maintained; do != nil {
		do(info)
	}
	return err
}

// MaintainAll is one pass for all consumers of a schema, without being one: for a cron job that connects as the owner
// of the tables, or with the maintainer's role. believe says that the database's clock is right although it has passed
// the last day that was made: see `relay inbox maintain --believe-clock`. Only Schema, DaysAhead, LockTimeout and
// Logger of cfg are used.
func MaintainAll(ctx context.Context, db *pgxpool.Pool, cfg Config, believe bool) (MaintainedInfo, error) {
	if db == nil {
		return MaintainedInfo{}, errors.New("inbox: MaintainAll needs a *pgxpool.Pool")
	}
	s, err := cfg.settings(db)
	if err != nil {
		return MaintainedInfo{}, err
	}
	s.MaintenanceDB, s.windowDays = db, 0
	k := newKeeper(s, s.Logger)
	k.believe = believe
	info, err := k.pass(ctx)
	info.Err = err
	return info, err
}

// pass makes, drops and cleans; one that fails does not keep the others from their work.
func (k *keeper) pass(ctx context.Context) (info MaintainedInfo, err error) {
	var made, dropped, cleaned error
	info.Made, made = k.makeDays(ctx, k.believe)
	info.Dropped, dropped = k.dropDays(ctx)
	info.Cleaned, cleaned = k.clean(ctx)
	return info, errors.Join(made, dropped, cleaned)
}

// clean deletes what is older than its consumer's window from inbox_message_any, in small transactions.
func (k *keeper) clean(ctx context.Context) (total int64, err error) {
	rows, err := k.db.Query(ctx, pgschema.Expand(sqlConsumers, k.prefix))
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
		k.log.Info("inbox: inbox_message_any cleaned", slog.Int64("rows", total))
	}
	return total, nil
}

func (k *keeper) cleanOnce(ctx context.Context, consumer string, windowDays int32) (n int64, err error) {
	err = pgx.BeginTxFunc(ctx, k.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, pgschema.Expand(sqlLockClean, k.prefix)).Scan(&mine); err != nil || !mine {
			return err
		}
		tag, err := tx.Exec(ctx, pgschema.Expand(sqlCleanAny, k.prefix), consumer, windowDays, cleanBatch)
		if n = tag.RowsAffected(); n == 0 {
			return err
		}
		return failpoint.After(failpoint.InboxClean, err)
	})
	if n > 0 {
		failpoint.Hit(failpoint.InboxCleaned)
	}
	return n, err
}
