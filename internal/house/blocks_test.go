package house

import (
	"go/format"
	"regexp"
	"strings"
	"testing"
)

// look is who looks at the blocks of a kind: on all pages, or those of one page, whose number it names. The kind is the
// language, and the title if there is one.
type look struct {
	page, kind string
	blocks     int
	by         string // the file and the test, or "nothing: " and the reason
}

const (
	commands = "cmd/relay/pages_test.go TestCommandsOfPages"
	settings = "cmd/relay/pages_test.go TestSettingsOfPages"
	foreign  = "verify/foreign/"
	interop  = "verify/interop/"
)

// looks are those at all blocks but Go.
var looks = []look{
	{"", "sh", 0, commands},
	{"", "text crontab", 0, commands},
	{"", "yaml relay.yaml", 0, settings},
	{"", "yaml values.yaml", 0, "verify/deploy/helm/chart_test.go TestValuesOfThePage"},

	{"docs/migrate/debezium.md", "sql", 5, foreign + "debezium_test.go TestMigrateFromDebezium"},
	{"docs/migrate/polling-outbox.md", "sql", 3, foreign + "polling_test.go TestMigrateFromAPollingOutbox"},
	{"docs/migrate/watermill-forwarder.md", "sql", 1, interop + "forwarder_test.go TestMigrateFromTheForwarder"},
	{"docs/operations/running.md", "sql", 1, "cmd/relay/pages_test.go TestArchiveOfThePage"},

	{"docs/migrate/debezium.md", "json", 1, foreign + "debezium_test.go TestMigrateFromDebezium"},
	{"docs/stores.md", "json", 1, "idempotency/dynamostore/table_test.go TestTable_AsDocumented"},

	{"docs/operations/ui.md", "yaml prometheus.yml", 1, "nothing: Prometheus' own"},
	{"docs/platforms/postgres.md", "yaml", 2, "nothing: Patroni's and CloudNativePG's own"},
	{"docs/platforms/postgres.md", "ini", 1, "verify/failover/pooler_test.go TestPgBouncer"},

	{"docs/first-hour.md", "text", 6, "cmd/relay-dev/page_test.go TestPageRuns"},
	{"docs/operations/dev.md", "text", 1, "nothing: it names a day's ports; those of the first hour are compared"},
}

// lookAt returns who looks at the blocks of a kind on a page.
func lookAt(page, kind string) (look, bool) {
	for _, l := range looks {
		if l.kind == kind && (l.page == "" || l.page == page) {
			return l, true
		}
	}
	return look{}, false
}

// TestBlocks: something looks at each block of code on a page. Go stands in a file that is compiled, line for line; for
// all others looks has the test.
func TestBlocks(t *testing.T) {
	t.Parallel()
	var compiled []string
	for _, s := range sources(t) {
		compiled = append(compiled, bare(readFile(t, s.path)))
	}
	found := map[look]int{} // those at one page
	golang := 0
	for _, page := range files(t, ".md") {
		for _, b := range blocks(t, page) {
			if b.kind == "go" {
				golang++
				checkGo(t, page, b.code, compiled)
			} else if l, ok := lookAt(page, b.kind); ok {
				found[l]++
			} else {
				t.Errorf("%s: nothing looks at its block of %s:\n%s", page, b.kind, b.code)
			}
		}
	}
	if golang < 20 {
		t.Errorf("the pages have %d blocks of Go", golang)
	}
	for _, l := range looks {
		if n := found[l]; n == 0 || l.page != "" && n != l.blocks {
			t.Errorf("%s has %d blocks of %s, want %d: does %s look at all of them?", l.page, n, l.kind, l.blocks, l.by)
		}
		file, test, _ := strings.Cut(l.by, " ")
		if file != "nothing:" && !strings.Contains(readFile(t, file), "\nfunc "+test+"(") {
			t.Errorf("%s has no %s, which looks at %s %s", file, test, l.page, l.kind)
		}
	}
}

// checkGo fails unless the code has gofmt's form, and stands in a file, whose indentation may be deeper.
func checkGo(t *testing.T, page, code string, compiled []string) {
	t.Helper()
	if formatted, err := format.Source([]byte(code)); err != nil || string(formatted) != code {
		t.Errorf("%s: this is not in gofmt's form (%v):\n%s", page, err, code)
	}
	for _, source := range compiled {
		if strings.Contains(source, bare(code)) {
			return
		}
	}
	t.Errorf("%s shows Go that is in no file; let an example have it:\n%s", page, code)
}

// bare is code without its indentation.
func bare(code string) string {
	lines := strings.Split(code, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], "\t")
	}
	return "\n" + strings.Trim(strings.Join(lines, "\n"), "\n") + "\n"
}

// block is code of a page between fences; its kind is the language, and the title if it has one.
type block struct{ kind, code string }

var fence = regexp.MustCompile("^( *)```(?:([a-z]*)(?: title=\"([^\"]+)\")?)$")

// blocks returns the blocks of a page. It fails for one without a language, and for code that is only indented.
func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	var open *block
	indent, before := "", ""
	for i, line := range strings.Split(readFile(t, page), "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case m == nil && open != nil:
			open.code += strings.TrimPrefix(line, indent) + "\n"
		case open != nil:
			all, open = append(all, *open), nil
		case m != nil && m[2] == "":
			t.Fatalf("%s:%d: a block without a language", page, i+1)
		case m != nil:
			open, indent = &block{kind: strings.TrimSpace(m[2] + " " + m[3])}, m[1]
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			t.Fatalf("%s:%d: want ```language or ```language title=\"...\"", page, i+1)
		case strings.HasPrefix(line, "    ") && before == "" && !strings.HasPrefix(strings.TrimSpace(line), "- "):
			t.Errorf("%s:%d: code, or text too deep: put code between fences, with its language", page, i+1)
		}
		before = strings.TrimSpace(line)
	}
	return all
}
