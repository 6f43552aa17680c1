package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/pgconf"
	"github.com/effectonce/effectonce/migrations"
)

type migrateCommand struct {
	database
	Sets         []string      `shown:"all" help:"Sets of tables: outbox, inbox, idempotency, or some with commas between."`
	Print        bool          `line:"" help:"Print all migrations as SQL for psql instead of running them; needs no database."`
	PrintPending bool          `line:"" help:"Print only what the database lacks; nothing when it lacks nothing."`
	Check        bool          `line:"" help:"Change nothing; exit with 4 when something is to be done."`
	Roles        bool          `help:"With --print: print the SQL of roles of least privilege instead, for producers, relays, workers and maintenance."`
	RolePrefix   string        `default:"effectonce" help:"What their names begin with, as in effectonce_relay."`
	LockTimeout  time.Duration `default:"500ms" help:"How long a statement waits for a table's lock, and writers behind it; it is tried again for 120 times that. Negative: for ever."`
	Timeout      time.Duration `default:"5m" help:"How long all of it may take, waiting for another migration included."`
}

// Help is the longer text of --help.
func (*migrateCommand) Help() string {
	return `Run it as the role that is to own the tables, over a direct connection rather than through a pooler, before the new
relays and workers start. It may run any number of times, and by several at once. By hand, all or nothing:

  relay migrate --print --schema app | psql -X -v ON_ERROR_STOP=1 -1 "$DATABASE_URL"

Then, as a superuser, what relays and workers may do, to be read before it runs:

  relay migrate --roles --print --schema app | psql -X -v ON_ERROR_STOP=1 -1 "$DATABASE_URL"`
}

func (c *migrateCommand) run(ctx context.Context, p *program) error {
	chosen := 0
	for _, set := range []bool{c.Print, c.PrintPending, c.Check} {
		if set {
			chosen++
		}
	}
	if chosen > 1 {
		return service.Usage("choose one of --print, --print-pending and --check")
	}
	if c.Roles && !c.Print {
		return service.Usage("--roles only prints: add --print, read it, and run it with psql as a superuser")
	}
	options := migrations.Options{Schema: c.Schema, Logger: p.log, LockTimeout: c.LockTimeout}
	for _, set := range c.Sets {
		options.Sets = append(options.Sets, migrations.Set(set))
	}
	if err := migrations.Print(io.Discard, options); err != nil {
		return &service.UsageError{Err: err} // reads files that are part of the binary: only a setting can be wrong
	}
	switch {
	case c.Roles:
		if err := migrations.PrintRoles(p.stdout, options, c.RolePrefix); err != nil {
			return &service.UsageError{Err: err}
		}
		return nil
	case c.Print:
		return migrations.Print(p.stdout, options)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("not done within --timeout %v", c.Timeout))
	defer cancel()
	err := c.work(ctx, p, options)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return withAdvice(err)
}

func (c *migrateCommand) work(ctx context.Context, p *program, options migrations.Options) error {
	pool, err := c.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	switch {
	case c.PrintPending:
		return migrations.PrintPending(ctx, p.stdout, pool, options)
	case c.Check:
		return migrations.Check(ctx, pool, options)
	}
	conn, err := pgconf.ConnConfig(ctx, pool)
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, conn, options); err != nil {
		return err
	}
	p.log.Info("the schema is up to date")
	return nil
}
