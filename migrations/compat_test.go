package migrations

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// released is each set's newest version that a released binary knows: what is beyond it runs nowhere yet. A release
// writes it here.
var released = map[Set]int64{}

var declaration = regexp.MustCompile(
	`(?i)comment\s+on\s+table\s+[a-z_][a-z0-9_]*\s+is\s+'effectonce: binaries from ([1-9][0-9]{4}) on'`)

// oldest is what a migration declares; 0: nothing.
func (m migration) oldest() int64 {
	found := declaration.FindStringSubmatch(comment.ReplaceAllString(m.sql, ""))
	if found == nil {
		return 0
	}
	v, _ := strconv.ParseInt(found[1], 10, 64) // five digits
	return v
}

// contractions are what a binary that is running may not survive, or another set of rules for rows that it writes.
var contractions = map[string]*regexp.Regexp{
	"drops a table, view, sequence or type": regexp.MustCompile(
		`\bdrop\s+(table|view|materialized\s+view|sequence|type|domain|schema|function)\b`),
	"drops a column": regexp.MustCompile(
		`\bdrop\s+(column\b|(if\s+exists\s+)?[a-z_]+\s*(,|;|$))`),
	"drops a default": regexp.MustCompile(`\bdrop\s+(default|identity|expression)\b`),
	"renames":         regexp.MustCompile(`\brename\b`),
	"changes a column's type": regexp.MustCompile(
		`\balter\s+(column\s+)?[a-z_]+\s+(set\s+data\s+)?type\b`),
	"makes a column not null": regexp.MustCompile(`\bset\s+not\s+null\b`),
	"constrains what is there": regexp.MustCompile(
		`\badd\s+(constraint|check|unique|primary\s+key|foreign\s+key|exclude)\b`),
	"makes a unique index": regexp.MustCompile(`\bcreate\s+unique\s+index\b`),
	"takes rights away":    regexp.MustCompile(`\brevoke\b`),
	"moves a table":        regexp.MustCompile(`\bset\s+schema\b`),
	"adds a trigger or rule": regexp.MustCompile(
		`\bcreate\s+(or\s+replace\s+)?((constraint\s+)?trigger|rule)\b`),
	"empties a table": regexp.MustCompile(`\b(truncate|delete\s+from)\b`),
}

var (
	newColumn = regexp.MustCompile(`\badd\s+(column\s+)?(if\s+not\s+exists\s+)?([a-z_][a-z0-9_]*)\s([^;]*)`)
	literal   = regexp.MustCompile(`'(?:[^']|'')*'`)
)

// contracts lists what a migration takes from binaries that run already. What it does to tables that it makes itself,
// or that an earlier file of the same release made, is not looked at by this: tables says which are new.
func (m migration) contracts(tables []string) []string {
	var found []string
	text := strings.ToLower(literal.ReplaceAllString(comment.ReplaceAllString(m.sql, ""), "''"))
	for statement := range strings.SplitSeq(text, ";") {
		statement = strings.TrimSpace(statement)
		if statement == "" || touchesOnly(statement, tables) {
			continue
		}
		for what, shape := range contractions {
			if shape.MatchString(statement + ";") {
				found = append(found, what)
			}
		}
		for _, column := range newColumn.FindAllStringSubmatch(statement, -1) {
			if slices.Contains([]string{"constraint", "check", "unique", "primary", "foreign", "exclude"}, column[3]) {
				continue
			}
			if strings.Contains(column[4], "not null") && !strings.Contains(column[4], "default") &&
				!strings.Contains(column[4], "generated") {
				found = append(found, "adds a column that is not null and has no default")
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

var target = regexp.MustCompile(
	`^(?:alter\s+table(?:\s+if\s+exists)?(?:\s+only)?|create\s+unique\s+index\s+.*?\bon|create\s+(?:constraint\s+)?trigger\s+.*?\bon|comment\s+on\s+table)\s+([a-z_][a-z0-9_]*)`)

// touchesOnly reports whether a statement is about one of these tables, which no running binary knows.
func touchesOnly(statement string, tables []string) bool {
	if strings.HasPrefix(statement, "create table") {
		return true
	}
	of := target.FindStringSubmatch(statement)
	return of != nil && slices.Contains(tables, of[1])
}

// checkCompatible holds the files of all sets to the rule: a migration that takes something from running binaries says
// which it leaves behind, and no earlier promise is taken back. released is each set's newest version with a release;
// what is beyond it runs nowhere yet.
func checkCompatible(all []migration, released map[Set]int64) error {
	var errs []error
	oldest, fresh := map[Set]int64{}, map[Set][]string{}
	for _, m := range all {
		said := m.oldest()
		if said > m.version || said/setSize != m.version/setSize && said != 0 {
			errs = append(errs, fmt.Errorf("migration %s: it serves binaries from %d on: want a version of its set "+
				"up to its own", m.name, said))
		}
		if said != 0 && said < oldest[m.set] {
			errs = append(errs, fmt.Errorf("migration %s: it serves binaries from %d on, an earlier one only "+
				"from %d on", m.name, said, oldest[m.set]))
		}
		first := m.version%setSize == 1
		if first && said == 0 {
			errs = append(errs, fmt.Errorf("migration %s: the first of a set says which binaries it serves: comment "+
				"on table ... is 'effectonce: binaries from %d on'", m.name, m.version))
		}
		if m.version > released[m.set] {
			fresh[m.set] = append(fresh[m.set], m.creates...)
		}
		if took := m.contracts(fresh[m.set]); len(took) > 0 && !first && said <= oldest[m.set] {
			errs = append(errs, fmt.Errorf("migration %s: it %s: expand now and contract a release later, or say "+
				"which binaries are left behind: "+
				"comment on table ... is 'effectonce: binaries from N on'", m.name, strings.Join(took, ", ")))
		}
		oldest[m.set] = max(oldest[m.set], said)
	}
	return errors.Join(errs...)
}

// TestExpandThenContract: no file takes something from binaries that run, unless it says so.
func TestExpandThenContract(t *testing.T) {
	t.Parallel()
	all, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkCompatible(all, released); err != nil {
		t.Error(err)
	}
}

func TestContractionsAreFound(t *testing.T) {
	t.Parallel()
	const first = "create table a_one (i int, j int);\ncomment on table a_one is 'effectonce: binaries from 10001 on';"
	for text, want := range map[string]string{
		"drop table a_one;":                                            "drops a table",
		"alter table a_one drop column j;":                             "drops a column",
		"alter table a_one drop if exists j, drop i;":                  "drops a column",
		"alter table a_one alter i drop default;":                      "drops a default",
		"alter table a_one rename column j to k;":                      "renames",
		"ALTER TABLE a_one\n\tALTER COLUMN j TYPE bigint;":             "changes a column's type",
		"alter table a_one alter j set data type bigint;":              "changes a column's type",
		"alter table a_one alter column j set not null;":               "makes a column not null",
		"alter table a_one add constraint c check (j > 0);":            "constrains what is there",
		"alter table a_one add check (j > 0);":                         "constrains what is there",
		"create unique index on a_one (j);":                            "makes a unique index",
		"revoke select on a_one from public;":                          "takes rights away",
		"delete from a_one;":                                           "empties a table",
		"alter table a_one add column k int not null;":                 "is not null and has no default",
		"alter table a_one add k int not null;":                        "is not null and has no default",
		"create trigger t before insert on a_one execute function f()": "adds a trigger",

		"alter table a_one add column k int not null default 0;":                    "",
		"alter table a_one add column k text default 'not null; drop table a_one';": "",
		"-- drop table a_one;\nalter table a_one add column k int;":                 "",
		"create index on a_one (j);":                                                "",
		"alter table a_one drop constraint c;":                                      "",
		"alter table a_one alter column j set storage external;":                    "",
		"create table a_two (i int not null, unique (i)); " +
			"alter table a_two add constraint c check (i > 0);": "",
		"create table a_two (i int); create unique index a_two_i on a_two (i);":              "",
		"drop table a_one;\ncomment on table a_one is 'effectonce: binaries from 10002 on';": "",

		"comment on table a_one is 'effectonce: binaries from 10003 on';": "want a version of its set",
		"comment on table a_one is 'effectonce: binaries from 20001 on';": "want a version of its set",

		"drop table a_one;\ncomment on table a_one is 'effectonce: binaries from 10001 on';": "drops a table",
	} {
		all, err := load(fstest.MapFS{
			"a/10001_a.sql": {Data: []byte("-- +goose Up\n" + first)},
			"a/10002_a.sql": {Data: []byte("-- +goose Up\n" + text)},
		})
		if err != nil {
			t.Fatal(err)
		}
		err = checkCompatible(all, map[Set]int64{"a": 10001})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\n\tgot %v, want %q", text, err, want)
		}
	}
	if all,
		err := load(fstest.MapFS{"a/10001_a.sql": {
		Data: []byte("-- +goose Up\ncreate table a_one (i int);"),
	}}); err != nil || checkCompatible(all, nil) == nil {
		t.Errorf("a set that says nothing: %v", err)
	}
}
