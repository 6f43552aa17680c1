package house

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// api has the exported names of the public packages: inbox.Config, and its inbox.Config.Dedup. Pages also write
// inbox.Batch for the method of inbox.Inbox. Packages of one name count as one.
type api struct {
	packages, names map[string]bool
	open            map[string]bool // types that also have what they embed, or that are others' types
}

func readAPI(t *testing.T) api {
	t.Helper()
	a := api{packages: map[string]bool{}, names: map[string]bool{}, open: map[string]bool{}}
	for _, s := range sources(t) {
		if !s.public() {
			continue
		}
		pkg := s.file.Name.Name
		a.packages[pkg] = true
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				a.names[pkg+"."+receiver(d)+d.Name.Name] = true
				a.names[pkg+"."+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					a.add(pkg, spec)
				}
			}
		}
	}
	return a
}

func (a api) add(pkg string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			a.names[pkg+"."+name.Name] = true
		}
	case *ast.TypeSpec:
		name := pkg + "." + spec.Name.Name
		a.names[name] = true
		var fields *ast.FieldList
		switch typ := spec.Type.(type) {
		case *ast.StructType:
			fields = typ.Fields
		case *ast.InterfaceType:
			fields = typ.Methods
		case *ast.SelectorExpr, *ast.Ident, *ast.IndexExpr:
			a.open[name] = true
			return
		default:
			return
		}
		for _, f := range fields.List {
			if len(f.Names) == 0 {
				a.open[name] = true
			}
			for _, field := range f.Names {
				a.names[name+"."+field.Name] = true
				a.names[pkg+"."+field.Name] = true
			}
		}
	}
}

// others are names that pages have of Watermill's own package, and of a variable.
var others = []string{"watermill.NewUUID", "store.Check"}

var (
	anyBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	inProse  = regexp.MustCompile("`[^`\n]+`")
	ofATest  = regexp.MustCompile(`^(Test|Fuzz|Example|Benchmark)`)
	apiName  = regexp.MustCompile(`(?:^|[^\w./"-])([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
)

// TestPagesNameTheAPI: what the text of pages names of the public packages exists: functions, types, their methods and
// fields. TestBlocks looks at their blocks of code.
func TestPagesNameTheAPI(t *testing.T) {
	t.Parallel()
	a := readAPI(t)
	named := 0
	for _, file := range files(t, ".md") {
		if file == "CHANGELOG.md" || strings.HasPrefix(file, "docs/decisions/") {
			continue // of their time
		}
		for _, span := range inProse.FindAllString(anyBlock.ReplaceAllString(readFile(t, file), ""), -1) {
			named += a.check(t, file, strings.Trim(span, "`"))
		}
	}
	if named < 100 {
		t.Errorf("the pages have %d names", named)
	}
}

// check looks for the names of a text, and returns how many it has.
func (a api) check(t *testing.T, file, text string) (n int) {
	t.Helper()
	for _, m := range apiName.FindAllStringSubmatch(text, -1) {
		pkg, name, member := m[1], m[1]+"."+m[2], m[3]
		if !a.packages[pkg] || ofATest.MatchString(m[2]) || slices.Contains(others, name) {
			continue
		}
		n++
		if !a.names[name] {
			t.Errorf("%s names %s, which does not exist", file, name)
		} else if member != "" && !a.open[name] && !a.names[name+"."+member] {
			t.Errorf("%s names %s.%s, which does not exist", file, name, member)
		}
	}
	return n
}
