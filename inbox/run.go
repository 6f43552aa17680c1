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

	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/internal/sleep"
)

// boundEvery is how often the lists of parked keys are measured.
const boundEvery = 15 * time.Second

// Run keeps the inbox's days: it makes them ahead of time, drops those that every consumer's window has left, and
// cleans inbox_message_any, every Config.MaintainEvery, sooner after a failure. And it runs what operators released,
// every Config.ReleaseEvery. It returns nil when ctx ends. Run it in every process of the consumer, beside the consumer
// that has the effect; they tolerate each other.
func (in *Inbox) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { in.repeat(ctx, "moving the progress", progressEvery/2, in.writeIdleProgress) })
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

// repeat calls do now and every so often until ctx ends, and after a growing pause when it fails.
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
	rows, err := in.db.Query(ctx, in.q(sqlBound), in.consumer, in.cfg.ParkedPerKey)
	if err != nil {
		return fmt.Errorf("inbox: measuring the lists of parked keys: %w", err)
	}
	changed, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err != nil {
		return fmt.Errorf("inbox: measuring the lists of parked keys: %w", err)
	}
	full := 0
	for _, f := range changed {
		if f {
			full++
		}
	}
	// Where lists are shorter again, or gone, partitions go on; one that halted for another list halts again.
	if err := in.unhalt(ctx, CodeListFull, full < len(changed)); err != nil {
		return fmt.Errorf("inbox: resuming the partitions of lists that are shorter again: %w", err)
	}
	if full > 0 {
		in.log.Error("inbox: the lists of parked keys are full: their partitions halt until events are released or "+
			"discarded",
			"keys", full, "bound", in.cfg.ParkedPerKey)
	}
	return nil
}

// Maintain is one pass of what Run does. A pass that fails half-way has done no harm and is finished by the next.
func (in *Inbox) Maintain(ctx context.Context) error {
	err := in.Prepare(ctx)
	var info MaintainedInfo
	if err == nil {
		info, err = pass(ctx, in.keeper)
		err = errors.Join(err, in.bound(ctx))
	}
	info.Err = err
	if do := in.cfg.Observer.Maintained; do != nil {
		do(info)
	}
	return err
}

func newKeeper(s settings, log *slog.Logger) *days.Keeper {
	return &days.Keeper{
		DB: s.MaintenanceDB, Prefix: s.prefix, Window: s.windowDays, Ahead: s.DaysAhead,
		LockTimeout: s.lockTimeout, Log: log,
	}
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
	k.Believe = believe
	info, err := pass(ctx, k)
	info.Err = err
	return info, err
}

// pass makes, drops and cleans; one that fails does not keep the others from their work.
func pass(ctx context.Context, k *days.Keeper) (info MaintainedInfo, err error) {
	var made, dropped, cleaned error
	info.Made, made = k.Make(ctx, k.Believe)
	info.Dropped, dropped = k.Drop(ctx)
	info.Cleaned, cleaned = k.Clean(ctx)
	return info, errors.Join(made, dropped, cleaned)
}
