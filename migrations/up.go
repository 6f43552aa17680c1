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

// Up applies what is pending of the sets, over one direct connection of its own that it makes from
// conn (from pgx.ParseConfig) and closes. Each migration and its version row commit together, so an
// Up that failed or was cancelled is simply run again. Several callers at once queue; ctx bounds the
// wait. With nothing pending it changes nothing and needs no right but to read the version table.
//
// It refuses, before it changes anything, a schema with a table of another's that has a name of ours
// ([ErrForeign]), a schema that is too new ([ErrNewer]), and a connection that is not where Schema
// says, as behind a pooler that ignores startup parameters.
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
	// Closing ends the session, and with it the lock.
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

// apply runs one set's files. Sets go one by one because a provider reads one folder.
func (p plan) apply(ctx context.Context, db *sql.DB, set Set) error {
	folder, err := fs.Sub(p.root, string(set))
	if err != nil {
		return fmt.Errorf("migrations: set %s: %w", set, err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, folder,
		goose.WithTableName(Table),
		// A set that is added later may have lower versions than one that is there.
		goose.WithAllowOutofOrder(true),
		// The application's own Go migrations are none of ours.
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
