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

// Set names one group of tables that is migrated, or left out, as a whole.
type Set string

const (
	// Outbox is what producers and relays need.
	Outbox Set = "outbox"
	// Inbox is what consumers need. It may live in another database than the outbox.
	Inbox Set = "inbox"
	// Idempotency is what pgstore needs. It belongs beside the business rows: a key and its effect are one transaction
	// there.
	Idempotency Set = "idempotency"
)

// Table is the version table that all sets share, in the schema they are migrated into. It is not
// goose's default name, so that an application's own goose migrations stay apart from these.
const Table = "effectonce_migration"

// DefaultLockTimeout is how long a migration waits for a table lock when Options says nothing.
const DefaultLockTimeout = 500 * time.Millisecond

// A migration that did not get a lock in time is tried again so often, after a pause of so many times what it waited:
// what has queued up behind it goes on meanwhile.
const (
	lockTries = 24
	lockPause = 4
)

// Options choose what is migrated and where. The zero value means every set, in the schema that the
// connection's search_path names first.
type Options struct {
	// Schema receives the tables, and is created when it is missing: 1 to 63 of a-z, 0-9 and _, not
	// beginning with a digit. Empty: the first existing schema of the connection's search_path.
	Schema string
	// Sets are the groups to work on. Empty: all of them.
	Sets []Set
	// Logger is told what was applied. Nil: nothing is logged.
	Logger *slog.Logger
	// LockTimeout bounds how long one statement waits for a table lock: for so long writers queue up
	// behind it. A migration that got none in time changes nothing and is tried again, with pauses of
	// four times LockTimeout, 24 times in all: a minute by default. Default 500 ms; negative: no bound,
	// and no second try.
	LockTimeout time.Duration
}

// FS returns the set's migration files, for tools that read goose's format themselves: they must use
// [Table] as version table, or Up and Check will not see what they did. An unknown set has no files.
func FS(set Set) fs.FS {
	sub, err := fs.Sub(files, string(set))
	if err != nil {
		return embed.FS{} // a malformed name, which has no files either
	}
	return sub
}

// plan is an Options that was checked and filled in, and the migrations it selects.
type plan struct {
	root        fs.FS  // a folder for each set; the embedded one but in tests
	schema      string // empty: the search_path decides
	prefix      string // the schema as it stands before a table's name
	lockTimeout time.Duration
	log         *slog.Logger
	migrations  []migration // in version order
}

// plan checks the options against the files in root. It talks to no database, so a wrong option is
// reported before anything is connected.
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

// sets are the selected ones, in the order in which they are applied.
func (p plan) sets() []Set { return knownSets(p.migrations) }

// quoted is the schema as one identifier, as it stands in search_path.
func (p plan) quoted() string { return strings.TrimSuffix(p.prefix, ".") }

// command is what a person runs to bring the schema up to date.
func (p plan) command() string {
	if p.schema == "" {
		return "relay migrate"
	}
	return "relay migrate --schema " + p.schema
}
