package migrations

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The pattern takes in every folder: a new set is a folder and a constant.
//
//go:embed */*.sql
var files embed.FS

// setSize is how many versions a set may use. All sets share a version table, so a version names its set: 1xxxx outbox,
// 2xxxx inbox, 3xxxx idempotency.
const setSize = 10_000

// migration is a file of a set.
type migration struct {
	set     Set
	version int64
	name    string   // the file's name without .sql
	sql     string   // without goose's annotations
	creates []string // created relations, lower case
	inTx    bool     // false: the file says NO TRANSACTION
}

var (
	filename   = regexp.MustCompile(`^([1-9][0-9]{4})_[a-z0-9_]+\.sql$`)
	annotation = regexp.MustCompile(`^--\s*\+goose\s+(.*\S)\s*$`)
	comment    = regexp.MustCompile(`--[^\n]*`)
	// Without indexes: their names belong to a table in the list.
	creation = regexp.MustCompile(
		`(?i)\b(?:create\s+(?:unlogged\s+)?(?:table|sequence|view|materialized\s+view)\s+(?:if\s+not\s+exists\s+)?|identity\s*\(\s*sequence\s+name\s+)([a-z_][a-z0-9_]*)`)
)

// load reads every set below root, in version order. It checks what the rest of the package relies on, so that a
// mistake in a file fails the first test.
func load(root fs.FS) ([]migration, error) {
	names, err := fs.Glob(root, "*/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var all []migration
	for _, name := range names {
		m, err := read(root, name)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b migration) int { return cmp.Compare(a.version, b.version) })
	for i, m := range all {
		if i == 0 || all[i-1].set != m.set {
			if m.version%setSize != 1 {
				return nil, fmt.Errorf("migration %s: the first version of a set ends in 0001", m.name)
			}
			continue
		}
		// Without gaps a missing file is seen, and "one version back" (see newer) can be counted.
		if m.version != all[i-1].version+1 {
			return nil, fmt.Errorf("migration %s: want version %d", m.name, all[i-1].version+1)
		}
	}
	return all, nil
}

func read(root fs.FS, name string) (migration, error) {
	parts := filename.FindStringSubmatch(path.Base(name))
	if parts == nil {
		return migration{}, errors.New("want a name like 10001_what.sql")
	}
	version, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return migration{}, err
	}
	content, err := fs.ReadFile(root, name)
	if err != nil {
		return migration{}, err
	}
	m := migration{
		set:     Set(path.Dir(name)),
		version: version,
		name:    strings.TrimSuffix(path.Base(name), ".sql"),
		inTx:    true,
	}
	var sql strings.Builder
	for line := range strings.Lines(string(content)) {
		a := annotation.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if a == nil {
			sql.WriteString(line)
			continue
		}
		switch strings.ToLower(a[1]) {
		case "up", "statementbegin", "statementend":
		case "no transaction":
			m.inTx = false
		default:
			// Above all Down: a tool must not drop an outbox by itself.
			return migration{}, fmt.Errorf("annotation %q is not used here", a[1])
		}
	}
	m.sql = strings.TrimSpace(sql.String())
	for _, c := range creation.FindAllStringSubmatch(comment.ReplaceAllString(m.sql, ""), -1) {
		m.creates = append(m.creates, strings.ToLower(c[1]))
	}
	return m, nil
}

// knownSets lists the sets of some migrations in version order.
func knownSets(all []migration) []Set {
	var sets []Set
	for _, m := range all {
		if !slices.Contains(sets, m.set) {
			sets = append(sets, m.set)
		}
	}
	return sets
}
