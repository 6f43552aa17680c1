package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/migrations"
)

// Tables are what an example keeps in its database.
type Tables struct {
	// Sets are the parts of effectonce's tables that the example needs.
	Sets []migrations.Set
	// DDL are the statements that make the example's own tables, each harmless when they are there. {schema} is the
	// prefix.
	DDL []string
	// Probe is a statement that works when those tables are there.
	Probe string
}

// Two workers that start at once must not make the same table at once: "if not exists" looks before it makes.
const (
	queryLock = `-- worker: one start at a time
select pg_advisory_xact_lock(hashtextextended('effectonce example ' || current_database() || $1::text, 0))`
	// After the lock above, for that wait is bounded by it as well.
	queryTimeout = `-- worker: do not queue behind a long transaction
select set_config('lock_timeout', '5s', true)`
)

// DB is a pool, and the tables of an example in it.
type DB struct {
	*pgxpool.Pool
	tables         Tables
	schema, prefix string
	skipMigrate    bool
	log            *slog.Logger
	able           atomic.Bool // the tables are there
}

// Open connects, and makes the tables, or checks that they are there when skipMigrate. A database that is away is
// waited for until ctx ends. The caller closes the pool.
func Open(ctx context.Context, db service.Database, schema string, tables Tables, skipMigrate bool, log *slog.Logger) (
	*pgxpool.Pool, error,
) {
	d, err := Pool(ctx, db, schema, tables, skipMigrate, log)
	if err != nil {
		return nil, err
	}
	if err := d.Prepare(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d.Pool, nil
}

// Pool is Open without waiting: it connects to nothing, and [DB.Prepare] does the rest.
func Pool(ctx context.Context, db service.Database, schema string, tables Tables, skipMigrate bool, log *slog.Logger) (
	*DB, error,
) {
	prefix, err := pgschema.Prefix(schema)
	if err != nil {
		return nil, err
	}
	cfg, err := db.PoolConfig("--database-url")
	if err != nil {
		return nil, err
	}
	if host := service.PlainText(cfg.ConnConfig); host != "" {
		log.Warn("the connection to Postgres may not be encrypted: set sslmode=verify-full in the database's URL",
			"host", host)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &DB{Pool: pool, tables: tables, schema: schema, prefix: prefix, skipMigrate: skipMigrate, log: log}, nil
}

// Prepare makes the tables, or checks that they are there when skipMigrate. A database that is away is waited for until
// ctx ends.
func (d *DB) Prepare(ctx context.Context) error {
	prepare := d.tables.check
	if !d.skipMigrate {
		prepare = d.tables.up
	}
	err := patiently(ctx, d.log, func() error { return prepare(ctx, d.Pool, d.schema, d.prefix) })
	d.able.Store(err == nil)
	return err
}

// Ready is nil when the tables are there and the database answers.
func (d *DB) Ready(ctx context.Context) error {
	if !d.able.Load() {
		return errors.New("starting: the database has not answered yet")
	}
	return d.Ping(ctx)
}

// patiently waits for a database that is away, says so once, and returns any other error.
func patiently(ctx context.Context, log *slog.Logger, do func() error) error {
	said := false
	pace := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(0))
	return backoff.Retry(func() error {
		err := do()
		if err == nil || ctx.Err() != nil || !pgerr.Away(err) {
			if err != nil {
				err = backoff.Permanent(err)
			}
			return err
		}
		if !said {
			said = true
			log.Warn("the database cannot be reached; waiting for it", "error", err)
		}
		return err
	}, backoff.WithContext(pace, ctx))
}

func (t Tables) up(ctx context.Context, pool *pgxpool.Pool, schema, prefix string) error {
	opt := migrations.Options{Schema: schema, Sets: t.Sets}
	conn, err := service.ConnConfig(ctx, pool)
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, conn, opt); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, queryLock, schema); err != nil {
			return fmt.Errorf("waiting for another start: %w", err)
		}
		if _, err := tx.Exec(ctx, queryTimeout); err != nil {
			return err
		}
		for _, ddl := range t.DDL {
			if _, err := tx.Exec(ctx, pgschema.Expand(ddl, prefix)); err != nil {
				return fmt.Errorf("making the tables: %w", err)
			}
		}
		return nil
	})
}

func (t Tables) check(ctx context.Context, pool *pgxpool.Pool, schema, prefix string) error {
	opt := migrations.Options{Schema: schema, Sets: t.Sets}
	if err := migrations.Check(ctx, pool, opt); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, pgschema.Expand(t.Probe, prefix))
	if pgerr.Is(err, pgerr.UndefinedTable) {
		return errors.Join(errors.New("the example's tables are missing: start it once without --migrate=false"), err)
	}
	return err
}
