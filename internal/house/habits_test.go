package house

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// longest is how many lines a function may have, its first and last included.
const longest = 80

// obvious methods mean what their interface says.
var obvious = []string{"Error", "Unwrap", "Is", "As", "String"}

func TestHabits(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if s.isTest && selects(n, "time", "Sleep") {
					t.Errorf("%s: a test sleeps: await what it waits for", s.at(n))
				}
			case *ast.StructType:
				for _, f := range n.Fields.List {
					if sel, ok := f.Type.(*ast.SelectorExpr); ok && selects(sel, "context", "Context") && !s.isTest {
						t.Errorf("%s: a context in a struct: pass it to what uses it", s.at(f))
					}
				}
			case *ast.FuncDecl:
				lines := s.set.Position(n.End()).Line - s.set.Position(n.Pos()).Line + 1
				if lines > longest && !s.isTest {
					t.Errorf("%s: %s has %d lines; %d is the most", s.at(n), n.Name.Name, lines, longest)
				}
			case *ast.Comment:
				for _, word := range []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"} {
					if strings.Contains(n.Text, word) {
						t.Errorf("%s: a %s: do it, or leave it", s.at(n), word)
					}
				}
			}
			return true
		})
	}
}

// TestDocumented: what a user sees says what it means.
func TestDocumented(t *testing.T) {
	t.Parallel()
	documented := map[string]bool{} // packages that say what they are
	for _, s := range sources(t) {
		if !s.public() {
			continue
		}
		documented[s.pkg] = documented[s.pkg] || s.file.Doc != nil
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && receiverIsExported(d) && d.Doc == nil &&
					!slices.Contains(obvious, d.Name.Name) {
					t.Errorf("%s: %s has no comment", s.at(d), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					checkSpec(t, s, d, spec)
				}
			}
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no comment", pkg)
		}
	}
}

func checkSpec(t *testing.T, s source, group *ast.GenDecl, spec ast.Spec) {
	t.Helper()
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return
		}
		if group.Doc == nil && spec.Doc == nil {
			t.Errorf("%s: %s has no comment", s.at(spec), spec.Name.Name)
		}
		// A Config is read field by field: each says its unit, its default, and what a wrong value breaks.
		if st, ok := spec.Type.(*ast.StructType); ok && spec.Name.Name == "Config" {
			for _, f := range st.Fields.List {
				if len(f.Names) > 0 && f.Names[0].IsExported() && f.Doc == nil && f.Comment == nil {
					t.Errorf("%s: Config.%s has no comment", s.at(f), f.Names[0].Name)
				}
			}
		}
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if name.IsExported() && group.Doc == nil && spec.Doc == nil && spec.Comment == nil {
				t.Errorf("%s: %s has no comment", s.at(spec), name.Name)
			}
		}
	}
}

func selects(sel *ast.SelectorExpr, pkg, name string) bool {
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg && sel.Sel.Name == name
}

func receiverIsExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}
