package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
)

var (
	// ErrPending: the schema lacks a migration. Run Up, or what the error says.
	ErrPending = errors.New("migrations are pending")
	// ErrNewer: the schema no longer serves this binary. Start a newer one.
	ErrNewer = errors.New("schema is newer than this binary")
	// ErrForeign: another program's table has a name that we need. Rename it, or migrate into another schema.
	ErrForeign = errors.New("name is taken by something else")
)

// DB reads the versions: a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Status is the state of a migration in a schema.
type Status struct {
	Set     Set
	Version int64
	// Name is the file's name without .sql; empty for an unknown version.
	Name    string
	Applied bool
	// AppliedAt is the database's clock, in UTC; zero while the migration is pending.
	AppliedAt time.Time
}

// Check returns nil if the schema has every migration of the sets and still serves this binary, however far it is
// ahead. It only reads; the role needs SELECT on the version table. Its error says what to run, and matches
// [ErrPending], [ErrNewer] or [ErrForeign].
func Check(ctx context.Context, db DB, opt Options) error {
	p, err := opt.plan(files)
	if err != nil {
		return err
	}
	return p.check(ctx, db)
}

func (p plan) check(ctx context.Context, db DB) error {
	have, err := p.read(ctx, db)
	if err != nil {
		return err
	}
	if !have.found {
		return fmt.Errorf("migrations: %w: %s has no table %s; run %q (or migrations.Up) as a role that may "+
			"create tables",
			ErrPending, p.where(), Table, p.command())
	}
	if pending := p.pending(have); len(pending) > 0 {
		return fmt.Errorf("migrations: %w: schema %q lacks %s; run %q (or migrations.Up) as the owner of its tables",
			ErrPending, have.schema, strings.Join(names(pending), ", "), p.command())
	}
	return p.newer(have)
}

// Applied lists the migrations of the sets in version order, including pending ones, and then the versions of a newer
// binary. In a schema that was never migrated all are pending.
func Applied(ctx context.Context, db DB, opt Options) ([]Status, error) {
	p, err := opt.plan(files)
	if err != nil {
		return nil, err
	}
	have, err := p.read(ctx, db)
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, set := range p.sets() {
		for _, m := range p.migrations {
			if m.set == set {
				at, ok := have.applied[m.version]
				list = append(list, Status{Set: set, Version: m.version, Name: m.name, Applied: ok, AppliedAt: at})
			}
		}
		for _, version := range p.unknown(have, set) {
			list = append(list, Status{Set: set, Version: version, Applied: true, AppliedAt: have.applied[version]})
		}
	}
	return list, nil
}

// state is the state of a schema.
type state struct {
	found   bool   // the version table exists
	schema  string // of the version table
	applied map[int64]time.Time
	oldest  map[int64]int64 // see readOldest
}

// shape has the columns of goose's version table, ordered by name.
var shape = []string{"id integer", "is_applied boolean", "tstamp timestamp without time zone", "version_id bigint"}

// read finds and reads the version table. It refuses a table that goose did not make.
func (p plan) read(ctx context.Context, db DB) (state, error) {
	var (
		have    state
		kind    string
		columns []string
	)
	err := db.QueryRow(ctx, queryFind, p.prefix+Table).Scan(&have.schema, &kind, &columns)
	if errors.Is(err, pgx.ErrNoRows) {
		return state{}, nil
	}
	if err != nil {
		return state{}, fmt.Errorf("migrations: look for %s in %s: %w", Table, p.where(), err)
	}
	if kind != "r" || !slices.Equal(columns, shape) {
		return state{}, fmt.Errorf("migrations: %w: %s.%s is not a version table of ours; rename it, or use "+
			"another schema",
			ErrForeign, have.schema, Table)
	}
	have.found, have.applied = true, map[int64]time.Time{}
	rows, err := db.Query(ctx, pgschema.Expand(queryVersions, p.prefix))
	if err != nil {
		return state{}, readError(have.schema, err)
	}
	var (
		version int64
		at      time.Time
	)
	if _, err := pgx.ForEachRow(rows, []any{&version, &at}, func() error {
		have.applied[version] = at
		return nil
	}); err != nil {
		return state{}, readError(have.schema, err)
	}
	have.oldest, err = readOldest(ctx, db, have.schema)
	return have, err
}

func readError(schema string, err error) error {
	if pgerr.Is(err, pgerr.InsufficientPrivilege) {
		return fmt.Errorf("migrations: read %s.%s: grant select on it to this role: %w", schema, Table, err)
	}
	return fmt.Errorf("migrations: read %s.%s: %w", schema, Table, err)
}

func (p plan) pending(have state) []migration {
	var list []migration
	for _, m := range p.migrations {
		if _, ok := have.applied[m.version]; !ok {
			list = append(list, m)
		}
	}
	return list
}

// newest returns the last version of a set that this binary knows.
func (p plan) newest(set Set) int64 {
	var last int64
	for _, m := range p.migrations {
		if m.set == set {
			last = m.version
		}
	}
	return last
}

// unknown returns the applied versions of a set beyond this binary's newest, ascending.
func (p plan) unknown(have state, set Set) []int64 {
	newest := p.newest(set)
	var list []int64
	for version := range have.applied {
		if version > newest && version/setSize == newest/setSize {
			list = append(list, version)
		}
	}
	slices.Sort(list)
	return list
}

// where names the schema in messages.
func (p plan) where() string {
	if p.schema == "" {
		return "the search_path"
	}
	return fmt.Sprintf("schema %q", p.schema)
}

func names(list []migration) []string {
	var s []string
	for _, m := range list {
		s = append(s, m.name)
	}
	return s
}
