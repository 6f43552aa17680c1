package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// variable is the environment variable with the number of the active mutant. helpers are called by mutated code.
const (
	variable = "EFFECTONCE_MUTANT"
	helpers  = `
import (
	"os"
	"strconv"
)

var mutantNow, _ = strconv.Atoi(os.Getenv("` + variable + `"))

func mutantOn(id int) bool { return mutantNow == id }

func mutantBy(id int) int {
	if mutantNow == id {
		return 1
	}
	return 0
}
`
)

// mutate writes the room's files with all mutants to dir, and the overlay for `go test -overlay`. A mutant's number is
// the index of its name plus one.
func (r room) mutate(ctx context.Context, module, dir string) (names []string, overlay string, err error) {
	m := mutator{fset: token.NewFileSet(), seen: map[string]int{}}
	files, err := m.check(ctx, module, r.dir)
	if err != nil {
		return nil, "", err
	}
	replace, pkg := map[string]string{}, ""
	put := func(name, text string) error {
		to := filepath.Join(dir, name)
		replace[filepath.Join(module, r.dir, name)] = to
		return os.WriteFile(to, []byte(text), 0o644)
	}
	for _, wanted := range r.files {
		name, only, _ := strings.Cut(wanted, " ")
		if files[name] == nil {
			return nil, "", fmt.Errorf("no file %s", name)
		}
		m.path, m.only, m.text, pkg = r.dir+"/"+name, strings.Fields(only), map[ast.Node]string{}, files[name].Name.Name
		if m.src, err = os.ReadFile(filepath.Join(module, m.path)); err != nil {
			return nil, "", err
		}
		if err := put(name, m.render(files[name])); err != nil {
			return nil, "", err
		}
	}
	if err := put("mutant_helpers.go", "package "+pkg+helpers); err != nil {
		return nil, "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return m.names, overlay, os.WriteFile(overlay, text, 0o644)
}

// mutator rewrites the files of a package with mutants.
type mutator struct {
	fset  *token.FileSet
	info  types.Info
	names []string       // of all mutants
	seen  map[string]int // number of mutants by name, without the suffix

	// The current file.
	src    []byte
	path   string              // in the module
	only   []string            // functions to mutate; empty: all
	around []ast.Node          // ancestors of the current node, outermost first
	text   map[ast.Node]string // generated text of a node
}

// check parses and type-checks a package.
func (m *mutator) check(ctx context.Context, module, dir string) (map[string]*ast.File, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-f",
		`{{if .DepOnly}}{{.ImportPath}}={{.Export}}{{else}}{{join .GoFiles "\n"}}{{end}}`, "./"+dir)
	cmd.Dir, cmd.Stderr = module, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports, files, all := map[string]string{}, map[string]*ast.File{}, []*ast.File{}
	for _, line := range strings.Fields(string(out)) {
		if path, export, found := strings.Cut(line, "="); found {
			exports[path] = export
			continue
		}
		if files[line], err = parser.ParseFile(m.fset, filepath.Join(module, dir, line), nil, 0); err != nil {
			return nil, err
		}
		all = append(all, files[line])
	}
	conf := types.Config{Importer: importer.ForCompiler(m.fset, "gc", func(path string) (io.ReadCloser, error) {
		text, err := os.ReadFile(exports[path])
		return io.NopCloser(bytes.NewReader(text)), err
	})}
	m.info.Types = map[ast.Expr]types.TypeAndValue{}
	_, err = conf.Check(dir, m.fset, all, &m.info)
	return files, err
}

func (m *mutator) source(from, to token.Pos) string {
	file := m.fset.File(from)
	return string(m.src[file.Offset(from):file.Offset(to)])
}

// render returns the text of a node with the mutants of it and its descendants.
func (m *mutator) render(n ast.Node) string {
	if fun, ok := n.(*ast.FuncDecl); ok && len(m.only) > 0 && !slices.Contains(m.only, fun.Name.Name) {
		return m.source(n.Pos(), n.End())
	}
	at, end, out := n.Pos(), n.End(), ""
	if file, ok := n.(*ast.File); ok {
		at, end = file.FileStart, file.FileEnd
	}
	m.around = append(m.around, n)
	for _, part := range m.parts(n) {
		out += m.source(at, part.Pos()) + m.render(part)
		at = part.End()
	}
	out += m.source(at, end)
	m.around = m.around[:len(m.around)-1]
	m.text[n] = out
	switch n := n.(type) {
	case *ast.BinaryExpr:
		m.text[n] = m.binary(n, out)
	case *ast.ReturnStmt:
		m.text[n] = m.zeros(n) + out
	case *ast.SwitchStmt:
		if m.hasTag(n) { // rewritten as comparisons, each of which can be disabled
			m.text[n] = "{ switch mutantTag := (" + m.text[n.Tag] + "); " + m.text[n.Body] + " }"
		}
	case *ast.CaseClause:
		m.text[n] = m.clause(n, out)
	case ast.Stmt:
		m.text[n] = m.without(n, out)
	case ast.Expr:
		m.text[n] = m.leaf(n, out)
	}
	return m.text[n]
}

// parts returns the children of a node that may be mutated, in source order.
func (m *mutator) parts(n ast.Node) (out []ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return []ast.Node{n.Body}
	case *ast.GenDecl:
		if n.Tok != token.VAR {
			return nil
		}
	case *ast.ArrayType, *ast.FuncType:
		return nil
	case *ast.SelectorExpr:
		return []ast.Node{n.X}
	case *ast.KeyValueExpr:
		return []ast.Node{n.Value}
	case *ast.CallExpr:
		if fun, ok := n.Fun.(*ast.Ident); ok && fun.Name == "make" {
			if _, slice := m.info.Types[n.Args[0]].Type.Underlying().(*types.Slice); !slice || len(n.Args) == 3 {
				return nil // a capacity does not change behaviour
			}
		}
	}
	ast.Inspect(n, func(part ast.Node) bool {
		if part != nil && part != n {
			out = append(out, part)
		}
		return part == n
	})
	return out
}

// add adds a mutant, named by its function and its change, and returns its number. Equal names get a numeric suffix.
func (m *mutator) add(format string, args ...any) int {
	function := ""
	for _, n := range m.around {
		switch n := n.(type) {
		case *ast.FuncDecl:
			function = n.Name.Name
		case *ast.ValueSpec:
			function = n.Names[0].Name
		}
	}
	name := m.path + " " + function + ": " + fmt.Sprintf(format, args...)
	if m.seen[name]++; m.seen[name] > 1 {
		name += fmt.Sprintf(" #%d", m.seen[name])
	}
	m.names = append(m.names, name)
	return len(m.names)
}

// short returns a node's source on one line.
func (m *mutator) short(n ast.Node) string {
	text := strings.Join(strings.Fields(m.source(n.Pos(), n.End())), " ")
	text = strings.NewReplacer("( ", "(", ", )", ")", ",)", ")", "{ ", "{", ", }", "}", " }", "}").Replace(text)
	return strings.ToValidUTF8(text[:min(len(text), 90)], "")
}

func (m *mutator) parent() ast.Node { return m.around[len(m.around)-1] }

var swapped = map[token.Token]string{
	token.LAND: "||", token.LOR: "&&", token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">",
	token.EQL: "!=", token.NEQ: "==",
}

// binary swaps && and ||, moves the boundary of a comparison, and negates it.
func (m *mutator) binary(n *ast.BinaryExpr, text string) string {
	if swapped[n.Op] == "" {
		return text
	}
	switch x, y := m.text[n.X], m.text[n.Y]; n.Op {
	case token.LAND, token.LOR: // a || b is !(!a && !b)
		on := fmt.Sprintf("mutantOn(%d) != ", m.add("%s: %s", m.short(n), swapped[n.Op]))
		return fmt.Sprintf("(%s((%s(%s)) %s (%s(%s))))", on, on, x, n.Op, on, y)
	case token.LSS, token.GTR:
		text = fmt.Sprintf("(%s || mutantOn(%d) && %s == %s)", text, m.add("%s: %s", m.short(n), swapped[n.Op]), x, y)
	case token.LEQ, token.GEQ:
		text = fmt.Sprintf(
			"(%s && !(mutantOn(%d) && %s == %s))",
			text,
			m.add("%s: %s", m.short(n), swapped[n.Op]),
			x,
			y,
		)
	}
	return fmt.Sprintf("(mutantOn(%d) != (%s))", m.add("not: %s", m.short(n)), text)
}

// leaf negates a condition that is not a comparison, and adds one to an integer constant.
func (m *mutator) leaf(n ast.Expr, text string) string {
	value := m.info.Types[n]
	switch n.(type) {
	case *ast.ParenExpr, *ast.UnaryExpr:
		return text
	case *ast.BasicLit, *ast.Ident, *ast.SelectorExpr:
		if value.Value != nil {
			return m.constant(n, value.Type, text)
		}
	}
	condition := false
	switch p := m.parent().(type) {
	case *ast.BinaryExpr:
		condition = p.Op == token.LAND || p.Op == token.LOR
	case *ast.UnaryExpr:
		condition = p.Op == token.NOT
	case *ast.IfStmt:
		condition = p.Cond == n
	case *ast.ForStmt:
		condition = p.Cond == n
	}
	if !condition {
		return text
	}
	return fmt.Sprintf("(mutantOn(%d) != (%s))", m.add("not: %s", m.short(n)), text)
}

func (m *mutator) constant(n ast.Expr, t types.Type, text string) string {
	basic, ok := t.Underlying().(*types.Basic)
	if _, tag := m.parent().(*ast.CaseClause); tag || !ok || basic.Info()&types.IsInteger == 0 ||
		basic.Info()&types.IsUntyped != 0 {
		return text
	}
	known := !strings.HasPrefix(text, "time.") // one nanosecond more makes no difference
	name := types.TypeString(t, func(p *types.Package) string {
		if p.Path() == filepath.Dir(m.path) {
			return ""
		}
		known = known && bytes.Contains(m.src, []byte(`"`+p.Path()+`"`))
		return p.Name()
	})
	if !known {
		return text
	}
	return fmt.Sprintf("(%s + %s(mutantBy(%d)))", text, name, m.add("%s: %s + 1", m.short(m.parent()), m.short(n)))
}

// without removes a statement, or one assignment of several. It keeps locks: the race detector tests those.
func (m *mutator) without(n ast.Stmt, text string) string {
	variants := []string{""} // replacements of the statement
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			return text
		}
		if len(n.Lhs) > 1 && len(n.Lhs) == len(n.Rhs) {
			variants = nil
			for i := range n.Lhs {
				but := func(all []ast.Expr) string { return m.list(append(slices.Clone(all[:i]), all[i+1:]...)) }
				variants = append(variants, but(n.Lhs)+" = "+but(n.Rhs))
			}
		}
	case *ast.ExprStmt, *ast.DeferStmt:
		if strings.Contains(text, "ock()") || strings.HasPrefix(text, "panic(") {
			return text
		}
	case *ast.BranchStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt:
	default:
		return text
	}
	open, closed := "", ""
	switch p := m.parent().(type) {
	case *ast.BlockStmt, *ast.CaseClause:
	case *ast.IfStmt, *ast.SwitchStmt: // before its condition
		open, closed = "func() { ", " }()"
	default:
		if comm, ok := p.(*ast.CommClause); !ok || comm.Comm == n {
			return text
		}
	}
	for i, variant := range variants {
		what := m.short(n)
		if len(variants) > 1 {
			what = m.short(n.(*ast.AssignStmt).Lhs[i]) + " in " + what
		}
		open += fmt.Sprintf("if mutantOn(%d) { %s } else ", m.add("without: %s", what), variant)
	}
	return open + "{ " + text + " }" + closed
}

func (m *mutator) list(all []ast.Expr) string {
	texts := make([]string, len(all))
	for i, e := range all {
		texts[i] = m.text[e]
	}
	return strings.Join(texts, ", ")
}

// zeros returns mutants of a return statement: each value replaced by its zero value, or negated if it is a bool.
func (m *mutator) zeros(n *ast.ReturnStmt) (before string) {
	types := m.results()
	for i, e := range n.Results {
		text, value := m.short(e), m.info.Types[e].Value
		zero := text == "nil" || strings.HasSuffix(text, "{}") ||
			value != nil && strings.Trim(value.String(), `"0`) == ""
		_, compared := e.(*ast.BinaryExpr) // has other mutants
		if zero || compared && types[i] == "bool" {
			continue
		}
		values := make([]string, len(types))
		for k := range types {
			switch {
			case len(n.Results) < len(types): // results of one call
				values[k] = "*new(" + types[k] + ")"
			case k != i:
				values[k] = m.text[n.Results[k]]
			case types[k] == "bool":
				values[k] = "!(" + m.text[e] + ")"
			default:
				values[k] = "*new(" + types[k] + ")"
			}
		}
		if text = "zero: " + m.short(n); len(n.Results) > 1 {
			text = "zero: " + m.short(e) + " in " + m.short(n)
		}
		id := m.add("%s", text)
		before += fmt.Sprintf("if mutantOn(%d) { return %s }\n", id, strings.Join(values, ", "))
	}
	return before
}

// results returns the result types of the innermost function.
func (m *mutator) results() (types []string) {
	for _, outer := range m.around {
		var list *ast.FieldList
		switch f := outer.(type) {
		case *ast.FuncDecl:
			list = f.Type.Results
		case *ast.FuncLit:
			list = f.Type.Results
		default:
			continue
		}
		types = nil
		for i := 0; list != nil && i < len(list.List); i++ {
			t := m.short(list.List[i].Type)
			types = append(types, slices.Repeat([]string{t}, max(len(list.List[i].Names), 1))...)
		}
	}
	return types
}

// hasTag reports whether the switch compares a value.
func (m *mutator) hasTag(n *ast.SwitchStmt) bool {
	return n.Tag != nil && n.Init == nil &&
		slices.ContainsFunc(n.Body.List, func(c ast.Stmt) bool { return c.(*ast.CaseClause).List != nil })
}

// clause disables a case, or one of its values.
func (m *mutator) clause(n *ast.CaseClause, text string) string {
	of, ok := m.around[len(m.around)-2].(*ast.SwitchStmt)
	if !ok || n.List == nil || of.Tag != nil && !m.hasTag(of) {
		return text
	}
	tag := ""
	if of.Tag != nil {
		tag = "mutantTag == "
	}
	var cases []string
	for _, e := range n.List {
		cases = append(
			cases,
			fmt.Sprintf("!mutantOn(%d) && (%s(%s))", m.add("without: case %s", m.short(e)), tag, m.text[e]),
		)
	}
	text = "case " + strings.Join(cases, ", ") + ":\n"
	for _, stmt := range n.Body {
		text += m.text[stmt] + "\n"
	}
	return text
}
