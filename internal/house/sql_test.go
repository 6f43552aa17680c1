package house

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	// The first line names the statement in pg_stat_statements.
	nameLine = regexp.MustCompile(`^-- ([a-z]+): [a-z][a-z0-9 -]*(\n|$)`)
	// What is no keyword: comments, string literals, quoted identifiers.
	quoted     = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"[^"]*"`)
	identifier = regexp.MustCompile(`^[a-z_]+$`)
	upper      = regexp.MustCompile(`[A-Z]`)
	// In a filter an array that is cast from a text is parsed for each row: 500 ids take 1 ms.
	castArray = regexp.MustCompile(`any ?\(\$\d+(::\w+(\[\])?){2}`)
	// With standard_conforming_strings off, which a session may inherit, a backslash means another thing in it.
	backslash = regexp.MustCompile(`[^eE]'[^']*\\[^']*'`)
	// A text that begins like this is a statement, wherever it stands.
	looksLikeSQL = regexp.MustCompile(
		`(?is)^\s*(--[^\n]*\n\s*)*(select\s.*\sfrom\s|select pg_|insert\s+into\s|update\s+\S+\s+set\s|delete\s+from\s|with\s+\S+\s+as\s*\(|(create|alter|drop)\s+(table|index)\s|lock\s+table\s)`)
)

// holdsQueries: a room's statements stand in queries.go, and in queries_<subject>.go where they are many.
func holdsQueries(s source) bool {
	base := path.Base(s.path)
	return !s.isTest && (base == "queries.go" || strings.HasPrefix(base, "queries_"))
}

// TestQueries: in a queries.go every string constant is one statement with its name in front.
func TestQueries(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if !holdsQueries(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, value := range spec.Values {
				checkQuery(t, s, spec.Names[i].Name, value)
			}
			return true
		})
	}
}

func checkQuery(t *testing.T, s source, name string, value ast.Expr) {
	t.Helper()
	if _, ok := value.(*ast.BinaryExpr); ok {
		t.Errorf("%s: %s is put together from parts: write the statement out", s.at(value), name)
		return
	}
	literal, ok := value.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return
	}
	sql, err := strconv.Unquote(literal.Value)
	if err != nil {
		t.Fatal(err)
	}
	if identifier.MatchString(sql) {
		return // a table's or column's name, as COPY wants it
	}
	if m := nameLine.FindStringSubmatch(sql); m == nil || !slices.Contains(strings.Split(s.pkg, "/"), m[1]) {
		t.Errorf("%s: %s must begin with a line `-- room: verb`, and stands in %s", s.at(value), name, s.pkg)
	}
	if at := upper.FindString(quoted.ReplaceAllString(sql, "")); at != "" {
		t.Errorf("%s: %s has an upper-case %s outside of comments and strings", s.at(value), name, at)
	}
	if at := backslash.FindString(sql); at != "" {
		t.Errorf("%s: %s has a backslash in %s: write e'...', or [[:space:]] and the like", s.at(value), name, at)
	}
	if at := castArray.FindString(sql); at != "" {
		t.Errorf("%s: %s may parse %s...) for each row: select from unnest", s.at(value), name, at)
	}
}

// TestSQLIsInQueries: no statement hides elsewhere. Examples and internal packages keep theirs where they like, and
// migrations are SQL through and through.
func TestSQLIsInQueries(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if !s.public() || holdsQueries(s) || s.pkg == "migrations" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(literal.Value); err == nil && looksLikeSQL.MatchString(text) {
				t.Errorf("%s: SQL outside of queries.go: %.60s", s.at(n), strings.TrimSpace(text))
			}
			return true
		})
	}
}

// asks are the methods of pgx by which SQL gets to a server. url.URL.Query takes nothing.
var asks = []string{"Query", "QueryRow", "Exec", "SendBatch", "CopyFrom", "Begin", "BeginTx", "Acquire", "Prepare"}

// TestPagesHaveNoSQL: what the pages show and change goes through operators and the doctor, as what the command does.
func TestPagesHaveNoSQL(t *testing.T) {
	t.Parallel()
	files := 0
	for _, s := range sources(t) {
		if s.pkg != "ui" || s.isTest {
			continue
		}
		files++
		if holdsQueries(s) {
			t.Errorf("%s: ui has statements of its own", s.path)
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if ok && slices.Contains(asks, sel.Sel.Name) && len(call.Args) > 0 {
				t.Errorf("%s: ui asks a database by %s: an operator does that", s.at(n), sel.Sel.Name)
			}
			return true
		})
	}
	if files < 5 {
		t.Errorf("found %d files of ui", files)
	}
}
