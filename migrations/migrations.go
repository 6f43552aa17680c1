package migrations

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// Set names a group of tables that is migrated as a whole.
type Set string

const (
	// Outbox has the tables of producers and relays.
	Outbox Set = "outbox"
	// Inbox has the tables of consumers. It may be in another database than the outbox.
	Inbox Set = "inbox"
	// Idempotency has the tables of pgstore. It belongs into the database of the business rows: a key and its effect
	// are one transaction there.
	Idempotency Set = "idempotency"
)

// Table is the version table of all sets, in the schema of the tables. Its name is not goose's default, so that an
// application's own goose migrations stay apart.
const Table = "effectonce_migration"

// DefaultLockTimeout is the default of Options.LockTimeout.
const DefaultLockTimeout = 500 * time.Millisecond

// A migration that did not get a lock in time is retried lockTries times, with pauses of lockPause times LockTimeout,
// in which the sessions behind it continue.
const (
	lockTries = 24
	lockPause = 4
)

// Options select what is migrated, and where. The zero value selects every set, in the first schema of the connection's
// search_path.
type Options struct {
	// Schema receives the tables, and is created if it is missing: 1 to 63 of a-z, 0-9 and _, not beginning with a
	// digit. Empty: the first existing schema of the connection's search_path.
	Schema string
	// Sets are the groups to migrate. Empty: all of them.
	Sets []Set
	// Logger logs what was applied. Nil: nothing is logged.
	Logger *slog.Logger
	// LockTimeout bounds how long a statement waits for a table lock; meanwhile writers queue behind it. A migration
	// that did not get its lock changes nothing and is tried again, with pauses of four times LockTimeout, 24 times in
	// all: a minute by default. Default 500 ms; negative: no bound, and no second try.
	LockTimeout time.Duration
}

// FS returns the set's migration files, for tools that read goose's format. They must use [Table] as version table;
// otherwise Up and Check do not see what they did. An unknown set has no files.
func FS(set Set) fs.FS {
	sub, err := fs.Sub(files, string(set))
	if err != nil {
		return embed.FS{} // a malformed name
	}
	return sub
}

// plan is a checked Options with its defaults, and the migrations that it selects.
type plan struct {
	root        fs.FS  // a folder for each set; tests replace it
	schema      string // empty: the search_path decides
	prefix      string // the schema as a prefix of a table's name
	lockTimeout time.Duration
	log         *slog.Logger
	migrations  []migration // in version order
}

// plan checks the options against the files in root, before any connection.
func (o Options) plan(root fs.FS) (plan, error) {
	p := plan{
		root: root, schema: o.Schema, lockTimeout: max(0, cmp.Or(o.LockTimeout, DefaultLockTimeout)),
		log: o.Logger,
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if p.prefix, err = pgschema.Prefix(o.Schema); err != nil {
		return plan{}, fmt.Errorf("migrations: %w", err)
	}
	all, err := load(root)
	if err != nil {
		return plan{}, fmt.Errorf("migrations: %w", err)
	}
	known := knownSets(all)
	for _, set := range o.Sets {
		if !slices.Contains(known, set) {
			return plan{}, fmt.Errorf("migrations: no set %q: want some of %q", set, known)
		}
	}
	for _, m := range all {
		if len(o.Sets) == 0 || slices.Contains(o.Sets, m.set) {
			p.migrations = append(p.migrations, m)
		}
	}
	return p, nil
}

// sets returns the selected sets, in the order in which they are applied.
func (p plan) sets() []Set { return knownSets(p.migrations) }

// quoted returns the schema as one identifier.
func (p plan) quoted() string { return strings.TrimSuffix(p.prefix, ".") }

// command returns the command that brings the schema up to date.
func (p plan) command() string {
	if p.schema == "" {
		return "relay migrate"
	}
	return "relay migrate --schema " + p.schema
}
