package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/migrations"
)

// Tables are the tables of an example.
type Tables struct {
	// Sets are effectonce's tables that the example needs.
	Sets []migrations.Set
	// DDL creates the example's own tables if they do not exist. See [In] for {schema}.
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

// In puts a schema's name into a statement, in front of its tables: in the place of {schema}. Empty: the search_path
// decides.
func In(schema, statement string) string {
	if schema != "" {
		schema = pgx.Identifier{schema}.Sanitize() + "."
	}
	return strings.ReplaceAll(statement, "{schema}", schema)
}

// Prepare makes the Prepare of a process.Health: it creates the tables, or with skipMigrate checks that they exist.
func (t Tables) Prepare(db *pgxpool.Pool, schema string, skipMigrate bool) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		if skipMigrate {
			return t.check(ctx, db, schema)
		}
		return t.up(ctx, db, schema)
	}
}

// up creates the tables.
func (t Tables) up(ctx context.Context, db *pgxpool.Pool, schema string) error {
	opt := migrations.Options{Schema: schema, Sets: t.Sets}
	if err := migrations.Up(ctx, db.Config().ConnConfig, opt); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, queryLock, schema); err != nil {
			return fmt.Errorf("waiting for the start of another worker: %w", err)
		}
		if _, err := tx.Exec(ctx, queryTimeout); err != nil {
			return err
		}
		for _, ddl := range t.DDL {
			if _, err := tx.Exec(ctx, In(schema, ddl)); err != nil {
				return fmt.Errorf("creating the tables: %w", err)
			}
		}
		return nil
	})
}

// check fails if the tables do not exist.
func (t Tables) check(ctx context.Context, db *pgxpool.Pool, schema string) error {
	if err := migrations.Check(ctx, db, migrations.Options{Schema: schema, Sets: t.Sets}); err != nil {
		return err
	}
	_, err := db.Exec(ctx, In(schema, t.Probe))
	const undefinedTable = "42P01"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == undefinedTable {
		return errors.Join(errors.New("the example's tables are missing: start it once without MIGRATE=false"), err)
	}
	return err
}
