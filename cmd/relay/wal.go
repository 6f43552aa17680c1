package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/relay/operator"
)

// walCommand has the operators' commands for the WAL feed.
type walCommand struct {
	Setup walSetupCommand `cmd:"" help:"Make what relays that read the WAL need: the publication."`
	Drop  walDropCommand  `cmd:"" help:"Drop the replication slot and the publication, when no relay is to read the WAL any more."`
}

type walSetupCommand struct {
	database
	jsonFlag
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

// Help is the longer text of --help.
func (*walSetupCommand) Help() string {
	return `Run it as the owner of the tables, with CREATE on the database, before relays run with --feed=wal. It creates a publication of
the events that producers insert, and may run again. Postgres needs wal_level=logical, and should have max_slot_wal_keep_size. The
relays' role needs REPLICATION. The relays make the replication slot themselves.`
}

func (c *walSetupCommand) run(ctx context.Context, p *program) error {
	return c.withPool(ctx, c.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		name, err := operator.SetUpWAL(ctx, pool, c.Schema)
		if err != nil {
			return outboxError(err)
		}
		p.log.Info("the publication is created; relays may run with --feed=wal", "publication", name)
		return c.print(p, map[string]any{"publication": name})
	})
}

type walDropCommand struct {
	database
	jsonFlag
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

// Help is the longer text of --help.
func (*walDropCommand) Help() string {
	return `Run it when every relay runs with --feed=table again: a replication slot that nobody reads makes Postgres keep all WAL from
then on. It refuses while a relay reads the slot. Run it as the relays' user, which has REPLICATION, and then as the owner of the
tables, for the publication; a user that is both needs to run it once.`
}

func (c *walDropCommand) run(ctx context.Context, p *program) error {
	return c.withPool(ctx, c.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		name, err := operator.DropWAL(ctx, pool, c.Schema)
		if err != nil {
			return outboxError(err)
		}
		p.log.Info("the replication slot and the publication are dropped", "slot", name)
		return c.print(p, map[string]any{"slot": name})
	})
}
