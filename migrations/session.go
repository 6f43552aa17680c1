package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// open returns a pool of one connection that holds the lock and has passed every check. So does a connection by which
// database/sql might replace it.
func (p plan) open(conn *pgx.ConnConfig, pending *[]migration) *sql.DB {
	cfg := conn.Copy()
	if p.schema != "" {
		cfg.RuntimeParams["search_path"] = p.quoted()
	}
	// goose stores times without a zone; Applied reads them as UTC.
	cfg.RuntimeParams["timezone"] = "UTC"
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		list, err := p.prepare(ctx, c)
		if err != nil {
			// The connector does not close a refused connection.
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			return errors.Join(err, c.Close(closing))
		}
		*pending = list
		return nil
	}))
	db.SetMaxOpenConns(1)
	return db
}

// prepare sets the session up for goose, and returns the pending migrations.
func (p plan) prepare(ctx context.Context, c *pgx.Conn) ([]migration, error) {
	schema, err := p.locate(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := lock(ctx, c, schema); err != nil {
		return nil, err
	}
	have, err := p.read(ctx, c)
	if err != nil {
		return nil, err
	}
	// Only without Schema: another role's session put the table into a later schema of the search_path. A second outbox
	// beside it would have producers and no relay.
	if have.found && have.schema != schema {
		return nil, fmt.Errorf("the search_path begins with schema %q, but %s is in %q: set Schema to the one you mean",
			schema, Table, have.schema)
	}
	have.schema = schema
	if err := p.newer(have); err != nil {
		return nil, err
	}
	pending := p.pending(have)
	if len(pending) == 0 {
		return nil, nil
	}
	if err := p.foreign(ctx, c, have, pending); err != nil {
		return nil, err
	}
	if err := p.enter(ctx, c, schema); err != nil {
		return nil, err
	}
	return pending, nil
}

// locate returns the schema of the session's unqualified names, or refuses the session.
func (p plan) locate(ctx context.Context, c *pgx.Conn) (string, error) {
	var (
		current, searchPath, role string
		pid                       uint32
	)
	if err := c.QueryRow(ctx, querySession).Scan(&current, &searchPath, &pid, &role); err != nil {
		return "", fmt.Errorf("look at the session: %w", err)
	}
	if pid != c.PgConn().PID() {
		// In transaction mode each statement may run in another backend, and the lock stays in one.
		p.log.WarnContext(ctx, "migrations: the connection seems to go through a pooler; connect to Postgres directly")
	}
	if p.schema == "" {
		if current == "" {
			return "", fmt.Errorf("no schema of search_path %q exists for role %q: set Schema, or create one",
				searchPath, role)
		}
		return current, nil
	}
	if searchPath != p.quoted() {
		return "", fmt.Errorf("asked for schema %q, but the session's search_path is %q: a pooler dropped it "+
			"(ignore_startup_parameters); connect to Postgres directly", p.schema, searchPath)
	}
	return p.schema, nil
}

// lock waits until no other session migrates this schema.
func lock(ctx context.Context, c *pgx.Conn, schema string) error {
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		var ok bool
		if err := c.QueryRow(ctx, queryLock, schema).Scan(&ok); err != nil {
			return fmt.Errorf("lock schema %q for migration: %w", schema, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another migration of schema %q is still running: %w", schema, context.Cause(ctx))
		case <-retry.C:
		}
	}
}

// foreign refuses other programs' tables with our names: CREATE TABLE IF NOT EXISTS would adopt them, and a plain one
// would fail half-way.
func (p plan) foreign(ctx context.Context, c *pgx.Conn, have state, pending []migration) error {
	want := map[string]bool{}
	for _, m := range pending {
		for _, name := range m.creates {
			want[name] = true
		}
	}
	// A table of an applied migration is ours, even if a pending one creates it again.
	for _, m := range p.migrations {
		if _, ok := have.applied[m.version]; ok {
			for _, name := range m.creates {
				delete(want, name)
			}
		}
	}
	var taken []string
	rows, err := c.Query(ctx, queryTaken, have.schema, slices.Collect(maps.Keys(want)))
	if err == nil {
		taken, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return fmt.Errorf("look for tables of the same name: %w", err)
	}
	if len(taken) > 0 {
		return fmt.Errorf("%w: schema %q already has %s, and %s does not say that we made it: rename it, or migrate "+
			"into another schema",
			ErrForeign, have.schema, strings.Join(taken, ", "), Table)
	}
	return nil
}

// enter creates the schema if it is missing, and checks that tables can be created in it.
func (p plan) enter(ctx context.Context, c *pgx.Conn, schema string) error {
	var exists bool
	if err := c.QueryRow(ctx, querySchema, schema).Scan(&exists); err != nil {
		return fmt.Errorf("look for schema %q: %w", schema, err)
	}
	if !exists {
		if _, err := c.Exec(ctx, pgschema.Expand(queryCreateSchema, p.quoted())); err != nil {
			return fmt.Errorf("create schema %q: %w", schema, err)
		}
		p.log.InfoContext(ctx, "migrations: schema created", "schema", schema)
	}
	var usage, create bool
	if err := c.QueryRow(ctx, queryMayCreate, schema).Scan(&usage, &create); err != nil {
		return fmt.Errorf("ask for the rights on schema %q: %w", schema, err)
	}
	if !usage || !create {
		return fmt.Errorf("role %q may not create tables in schema %q: grant usage, create on it, or migrate as "+
			"its owner",
			c.Config().User, schema)
	}
	timeout := strconv.FormatInt(p.lockTimeout.Milliseconds(), 10)
	if _, err := c.Exec(ctx, querySetLockTimeout, timeout); err != nil {
		return fmt.Errorf("set lock_timeout: %w", err)
	}
	return nil
}
