package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/service"
)

type maintainCommand struct {
	database
	DaysAhead    int           `default:"7" help:"How many days of partitions are made ahead of time, 1 to 60. More than the workers' own setting does no harm."`
	BelieveClock bool          `help:"The database's clock is right although it has passed the last day that was made: days are dropped by it again."`
	Timeout      time.Duration `default:"30m" help:"How long the pass may take; what it leaves undone the next one does."`
}

// Help is the longer text of --help.
func (*maintainCommand) Help() string {
	return `For a cron job that connects as the owner of the tables, or with the maintainer's role (relay migrate --roles --print), where
the workers' own role may not make and drop days. Once a day is enough, several times a day is better: no pass for longer than
--days-ahead stops the consumers.`
}

func (c *maintainCommand) run(ctx context.Context, p *program) error {
	if c.DaysAhead < 1 || c.DaysAhead > 60 {
		return service.Usage("--days-ahead is %d: want 1 to 60", c.DaysAhead)
	}
	return c.opened(ctx, c.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		info, err := inbox.MaintainAll(ctx, pool, inbox.Config{Schema: c.Schema, DaysAhead: c.DaysAhead, Logger: p.log}, c.BelieveClock)
		if err != nil {
			return inboxError(err)
		}
		p.log.Info("the inbox is maintained", "days_made", len(info.Made), "days_dropped", len(info.Dropped), "rows_cleaned", info.Cleaned)
		return nil
	})
}
