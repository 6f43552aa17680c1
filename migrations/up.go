package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
)

// Up applies the pending migrations of the sets, over a direct connection that it opens from conn (from
// pgx.ParseConfig) and closes. Each migration commits together with its version row, so an Up that failed or was
// cancelled can be run again. Concurrent callers queue; ctx bounds the wait. If nothing is pending, it changes nothing
// and only needs to read the version table.
//
// Before any change it refuses a schema in which another program's table has one of our names ([ErrForeign]), a schema
// that is too new ([ErrNewer]), and a connection that is not in Schema, as behind a pooler that ignores startup
// parameters.
func Up(ctx context.Context, conn *pgx.ConnConfig, opt Options) error {
	if conn == nil {
		return errors.New("migrations: conn is nil: want a config from pgx.ParseConfig")
	}
	p, err := opt.plan(files)
	if err != nil {
		return err
	}
	return p.up(ctx, conn)
}

func (p plan) up(ctx context.Context, conn *pgx.ConnConfig) error {
	var pending []migration
	db := p.open(conn, &pending)
	// Closing ends the session and its lock.
	defer db.Close()
	first, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	if err := first.Close(); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	for _, set := range knownSets(pending) {
		if err := p.apply(ctx, db, set); err != nil {
			return err
		}
	}
	return nil
}

// apply runs the files of a set: a provider reads one folder.
func (p plan) apply(ctx context.Context, db *sql.DB, set Set) error {
	folder, err := fs.Sub(p.root, string(set))
	if err != nil {
		return fmt.Errorf("migrations: set %s: %w", set, err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, folder,
		goose.WithTableName(Table),
		// A set that is added later may have lower versions than an applied one.
		goose.WithAllowOutofOrder(true),
		// Without the application's own Go migrations.
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("migrations: set %s: %w", set, err)
	}
	for try := 1; ; try++ {
		var results []*goose.MigrationResult
		results, err = provider.Up(ctx)
		for _, r := range results {
			p.log.InfoContext(ctx, "migrations: applied", "set", string(set), "version", r.Source.Version, "duration",
				r.Duration)
		}
		if !pgerr.Retry(err) {
			break
		}
		if try == lockTries {
			return fmt.Errorf("migrations: set %s: a table stayed locked for %v, %d times in a row; this migration "+
				"changed nothing: "+
				"run it again when no long transaction is open, or raise LockTimeout: %w", set, p.lockTimeout, try, err)
		}
		p.log.InfoContext(ctx, "migrations: a table is locked; trying again", "set", string(set), "after",
			lockPause*p.lockTimeout)
		if sleep.For(ctx, lockPause*p.lockTimeout) != nil {
			return fmt.Errorf("migrations: set %s: waiting for a table's lock: %w", set, context.Cause(ctx))
		}
	}
	if err != nil {
		return fmt.Errorf("migrations: set %s: %w", set, err)
	}
	return nil
}
