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

// boundEvery is how often Run counts the lists of parked keys.
const boundEvery = 15 * time.Second

// Run maintains the inbox every Config.MaintainEvery, sooner after a failure: it creates days in advance, drops the
// days that are outside every consumer's window, and cleans inbox_message_any. It also runs the events that operators
// released, every Config.ReleaseEvery. It returns nil when ctx ends. Call Run in every process of the consumer, next to
// the handlers that have the effects. Several processes may run it at once.
func (in *Inbox) Run(ctx context.Context) error {
	in.running.Store(true)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { in.repeat(ctx, "moving the progress", progressEvery/5, in.writeIdleProgress) })
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

// runIsLate is how long after the inbox was prepared it says that Run was not called.
const runIsLate = time.Minute

// missRun says once that Run was not called.
func (in *Inbox) missRun() {
	at := in.prepared.Load()
	if at == nil || in.running.Load() || time.Since(*at) < runIsLate || !in.prepared.CompareAndSwap(at, nil) {
		return
	}
	in.log.Error("inbox: events are handled, and Inbox.Run was not called: what operators release does not run here, " +
		"no days are made or dropped, and idle partitions do not advance their progress; call it beside the handlers")
}

// repeat calls do at once and then at the given interval until ctx ends. After a failure it waits for a growing time.
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

// bound marks the keys whose list is full, and unmarks those whose list is shorter again.
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
	// Partitions resume when a list is shorter again or gone. One that halted for another list halts again.
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

// Maintain runs one maintenance pass. A pass that fails half-way does no harm; the next pass finishes its work.
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

// MaintainConfig sets [MaintainAll]. The zero value is a safe default for every field.
type MaintainConfig struct {
	// Schema, DaysAhead, LockTimeout and Logger are those of [Config].
	Schema      string
	DaysAhead   int
	LockTimeout time.Duration
	Logger      *slog.Logger
	// BelieveClock says that the database's clock is right although it has passed the last created day: see
	// `relay inbox maintain --believe-clock`.
	BelieveClock bool
}

// MaintainAll runs one maintenance pass for all consumers of a schema, without a consumer of its own. It is for a cron
// job that connects as the owner of the tables or with the maintainer's role.
func MaintainAll(ctx context.Context, db *pgxpool.Pool, cfg MaintainConfig) (MaintainedInfo, error) {
	if db == nil {
		return MaintainedInfo{}, errors.New("inbox: MaintainAll needs a *pgxpool.Pool")
	}
	s, err := Config{
		Schema: cfg.Schema, DaysAhead: cfg.DaysAhead, LockTimeout: cfg.LockTimeout, Logger: cfg.Logger,
	}.settings(db)
	if err != nil {
		return MaintainedInfo{}, err
	}
	s.MaintenanceDB, s.windowDays = db, 0
	k := newKeeper(s, s.Logger)
	k.Believe = cfg.BelieveClock
	info, err := pass(ctx, k)
	info.Err = err
	return info, err
}

// pass creates, drops and cleans. A failure of one step does not skip the next.
func pass(ctx context.Context, k *days.Keeper) (info MaintainedInfo, err error) {
	var made, dropped, cleaned error
	info.Made, made = k.Make(ctx, k.Believe)
	info.Dropped, dropped = k.Drop(ctx)
	info.Cleaned, cleaned = k.Clean(ctx)
	return info, errors.Join(made, dropped, cleaned)
}
