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
	"github.com/effectonce/effectonce/internal/pgtls"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/migrations"
)

// Tables are the tables of an example.
type Tables struct {
	// Sets are effectonce's tables that the example needs.
	Sets []migrations.Set
	// DDL creates the example's own tables if they do not exist. {schema} is the prefix.
	DDL []string
	// Probe is a statement that fails if those tables do not exist.
	Probe string
}

// Workers that start concurrently must not create the same table: "if not exists" is not atomic.
const (
	queryLock = `-- worker: serialise starts
select pg_advisory_xact_lock(hashtextextended('effectonce example ' || current_database() || $1::text, 0))`
	// Set after queryLock: it would bound that wait too.
	queryTimeout = `-- worker: lock timeout
select set_config('lock_timeout', '5s', true)`
)

// DB is a pool with the tables of an example.
type DB struct {
	*pgxpool.Pool
	tables         Tables
	schema, prefix string
	skipMigrate    bool
	log            *slog.Logger
	prepared       atomic.Bool // the tables are there
}

// Open connects and runs [DB.Prepare]. The caller closes the pool.
func Open(ctx context.Context, db service.Database, schema string, tables Tables, skipMigrate bool, log *slog.Logger) (
	*pgxpool.Pool, error,
) {
	d, err := NewDB(ctx, db, schema, tables, skipMigrate, log)
	if err != nil {
		return nil, err
	}
	if err := d.Prepare(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d.Pool, nil
}

// NewDB makes a pool without connecting. Call [DB.Prepare] before use.
func NewDB(ctx context.Context, db service.Database, schema string, tables Tables, skipMigrate bool, log *slog.Logger) (
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
	if host := pgtls.PlainText(cfg.ConnConfig); host != "" {
		log.Warn("the connection to Postgres may not be encrypted: set sslmode=verify-full in the database's URL",
			"host", host)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &DB{Pool: pool, tables: tables, schema: schema, prefix: prefix, skipMigrate: skipMigrate, log: log}, nil
}

// Prepare creates the tables, or with skipMigrate checks that they exist. While the database is away it waits, until
// ctx ends.
func (d *DB) Prepare(ctx context.Context) error {
	prepare := d.tables.check
	if !d.skipMigrate {
		prepare = d.tables.up
	}
	err := retryWhileAway(ctx, d.log, func() error { return prepare(ctx, d.Pool, d.schema, d.prefix) })
	d.prepared.Store(err == nil)
	return err
}

// Prepared reports whether the tables exist.
func (d *DB) Prepared() bool { return d.prepared.Load() }

// Ready returns nil if the tables exist and the database answers.
func (d *DB) Ready(ctx context.Context) error {
	if !d.prepared.Load() {
		return errors.New("starting: the database has not answered yet")
	}
	return d.Ping(ctx)
}

// retryWhileAway retries do while the database is away, which it logs once, and returns any other error.
func retryWhileAway(ctx context.Context, log *slog.Logger, do func() error) error {
	logged := false
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
		if !logged {
			logged = true
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
			return fmt.Errorf("waiting for the start of another worker: %w", err)
		}
		if _, err := tx.Exec(ctx, queryTimeout); err != nil {
			return err
		}
		for _, ddl := range t.DDL {
			if _, err := tx.Exec(ctx, pgschema.Expand(ddl, prefix)); err != nil {
				return fmt.Errorf("creating the tables: %w", err)
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
