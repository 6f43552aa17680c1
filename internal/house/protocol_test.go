package house

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/house/rules"
)

var (
	// room.Type.Member, room: statement
	codeName = regexp.MustCompile(`^[a-z/]+(?:\.[A-Z]\w*)+$|^[a-z]+: [a-z ]+$`)
	// P3, P3.1, P4.hold
	ruleHeading   = regexp.MustCompile(`(?m)^#{2,3} (P[0-9]+(?:\.[0-9a-z]+)?)\. `)
	invariantRow  = regexp.MustCompile(`(?m)^\| (I[0-9]+) \|`)
	ruleInText    = regexp.MustCompile(`\bP[0-9]{1,2}(?:\.[0-9]+)?\b`)
	ruleInLiteral = regexp.MustCompile(`^P[0-9]+(?:\.[0-9a-z]+)?\b`)
	tableMade     = regexp.MustCompile(`(?m)^create table ([a-z_]+)`)
)

// protocol is docs/protocol.md: its rules, each with the text up to the next.
type protocol struct {
	text  string
	rules map[string]string
}

func readProtocol(t *testing.T) protocol {
	t.Helper()
	p := protocol{text: readFile(t, "docs/protocol.md"), rules: map[string]string{}}
	at := ruleHeading.FindAllStringSubmatchIndex(p.text, -1)
	for i, m := range at {
		end := len(p.text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		rule := p.text[m[2]:m[3]]
		if _, twice := p.rules[rule]; twice {
			t.Errorf("docs/protocol.md has two sections %s", rule)
		}
		p.rules[rule] = p.text[m[0]:end]
	}
	if len(p.rules) < 30 {
		t.Fatalf("docs/protocol.md has %d rules: are these still its headings?", len(p.rules))
	}
	return p
}

// TestRulesThatAreNamedExist: a comment, a test, a story, a patch or a page names no rule that docs/protocol.md lacks.
func TestRulesThatAreNamedExist(t *testing.T) {
	t.Parallel()
	p := readProtocol(t)
	missing := func(rule, where string) {
		if _, ok := p.rules[rule]; !ok {
			t.Errorf("%s names %s, which docs/protocol.md does not have", where, rule)
		}
	}
	inText := func(text, where string) {
		for _, rule := range ruleInText.FindAllString(text, -1) {
			missing(rule, where)
		}
	}
	for _, s := range sources(t) {
		for _, group := range s.file.Comments {
			inText(group.Text(), s.at(group))
		}
		for rule, n := range rulesOfTests(s) {
			missing(rule, s.at(n))
		}
	}
	for _, file := range files(t, ".md", ".sql", ".txt", ".patch") {
		inText(readFile(t, file), file)
		inText(path.Base(file), file)
	}
	for _, row := range readRules(t) {
		for _, rule := range strings.Split(row.Rule, "-") {
			switch rule[0] {
			case 'P':
				missing(rule, "docs/rules.md")
			case 'I':
				if !strings.Contains(p.text, "\n| "+rule+" | ") {
					t.Errorf("docs/rules.md names %s, which is no invariant of docs/protocol.md", rule)
				}
			}
		}
	}
}

// TestRulesHaveTests: every rule of docs/protocol.md is in a test's name, in a subtest's or in a story's, and has a row
// in docs/rules.md, as every invariant has. A rule with a word (P4.hold) is named by its row alone: its tests say P4.
func TestRulesHaveTests(t *testing.T) {
	t.Parallel()
	p := readProtocol(t)
	named, rows := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		for rule := range rulesOfTests(s) {
			named[rule] = true
		}
	}
	for _, story := range files(t, ".txt") {
		named[ruleInText.FindString(path.Base(story))] = true
	}
	for _, row := range readRules(t) {
		rows[row.Rule] = true
	}
	for rule := range p.rules {
		if !rows[rule] && !p.hasParts(rule) {
			t.Errorf("%s has no row in docs/rules.md", rule)
		}
		number, word, _ := strings.Cut(rule, ".")
		if _, err := strconv.Atoi(word); err == nil {
			number = rule
		}
		if !named[number] && !p.hasParts(rule) {
			t.Errorf("no test is named for %s", rule)
		}
	}
	for _, m := range invariantRow.FindAllStringSubmatch(p.text, -1) {
		if !rows[m[1]] {
			t.Errorf("%s has no row in docs/rules.md", m[1])
		}
	}
}

// hasParts: the rule is the head of others (P3 of P3.1).
func (p protocol) hasParts(rule string) bool {
	for other := range p.rules {
		if strings.HasPrefix(other, rule+".") {
			return true
		}
	}
	return false
}

// TestTheProtocolNamesCodeThatExists: what docs/protocol.md names of the code is there: functions, types and fields by
// their package, statements by their first line, and the tables of P1.
func TestTheProtocolNamesCodeThatExists(t *testing.T) {
	t.Parallel()
	p := readProtocol(t)
	known := codeNames(t)
	tables := regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(p.rules["P1"], -1)
	for _, row := range tables {
		for _, name := range backticked(row[1]) {
			if !known[name] {
				t.Errorf("P1: there is no table %s", name)
			}
		}
	}
	if len(tables) < 10 {
		t.Errorf("P1 has %d rows of tables", len(tables))
	}
	named := 0
	for _, name := range backticked(p.text) {
		name = strings.TrimPrefix(name, "-- ")
		if !codeName.MatchString(name) {
			continue
		}
		named++
		if !known[name] {
			t.Errorf("docs/protocol.md names %s, which does not exist", name)
		}
	}
	if named < 8 {
		t.Errorf("docs/protocol.md has %d names of code: does the test still find them?", named)
	}
}

// backticked returns what stands between backticks.
func backticked(text string) (names []string) {
	for i, part := range strings.Split(text, "`") {
		if i%2 == 1 {
			names = append(names, strings.Join(strings.Fields(part), " "))
		}
	}
	return names
}

// rulesOfTests are the rules that the tests of a file are named for: functions, and subtests whose names stand as
// literals.
func rulesOfTests(s source) map[string]ast.Node {
	found := map[string]ast.Node{}
	if !s.isTest {
		return found
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if rule := rules.Of(n.Name.Name); rule != "" && n.Recv == nil {
				found[rule] = n
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				if rule := ruleInText.FindString(ruleInLiteral.FindString(text)); rule != "" {
					found[rule] = n
				}
			}
		}
		return true
	})
	return found
}

// codeNames are the names that a page may cite: room.Name, room.Type.Member, a statement's first line, a table.
func codeNames(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				known[s.pkg+"."+receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					addSpec(known, s.pkg+".", spec)
				}
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && nameLine.MatchString(text) {
					name, _, _ := strings.Cut(text, "\n")
					known[strings.TrimPrefix(name, "-- ")] = true
				}
			}
			return true
		})
	}
	for _, file := range files(t, ".sql") {
		for _, m := range tableMade.FindAllStringSubmatch(readFile(t, file), -1) {
			known[m[1]] = true
		}
	}
	return known
}

func addSpec(known map[string]bool, room string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		known[room+spec.Name.Name] = true
		if st, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				for _, name := range f.Names {
					known[room+spec.Name.Name+"."+name.Name] = true
				}
			}
		}
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			known[room+name.Name] = true
		}
	}
}

// receiver is the type of a method and a dot; empty for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	e := d.Recv.List[0].Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if index, ok := e.(*ast.IndexExpr); ok {
		e = index.X
	}
	if name, ok := e.(*ast.Ident); ok {
		return name.Name + "."
	}
	return ""
}

func readRules(t *testing.T) (rows []rules.Row) {
	t.Helper()
	for _, line := range strings.Split(readFile(t, "docs/rules.md"), "\n") {
		if row, ok := rules.Parse(line); ok {
			rows = append(rows, row)
		}
	}
	if len(rows) < 40 {
		t.Fatalf("docs/rules.md has %d rows: is this still the table?", len(rows))
	}
	return rows
}

// files are the files of the repository with one of these endings, by their path from its root.
func files(t *testing.T, endings ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		for _, ending := range endings {
			if strings.HasSuffix(file, ending) {
				rel, err := filepath.Rel(root, file)
				found = append(found, filepath.ToSlash(rel))
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
