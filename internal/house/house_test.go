// Package house checks the rules of this repository that a compiler does not: who may import whom, where SQL lives, and
// a few habits of the source.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// root of the module, seen from this directory, where go test runs.
const root = "../.."

const module = "github.com/effectonce/effectonce"

// source is one parsed Go file.
type source struct {
	path   string // relative to the root, with slashes
	pkg    string // its directory, likewise
	file   *ast.File
	set    *token.FileSet
	isTest bool
}

// public tells whether users of the module see this file's names.
func (s source) public() bool {
	return !s.isTest && s.file.Name.Name != "main" && !strings.Contains("/"+s.pkg+"/", "/internal/") &&
		!under(s.pkg, []string{"examples", "verify"})
}

func (s source) at(n ast.Node) string { return s.set.Position(n.Pos()).String() }

// sources parses every Go file of the repository.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if path != root && (name == "testdata" || strings.HasPrefix(name, ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		pkg := filepath.ToSlash(filepath.Dir(rel))
		all = append(all, source{path: rel, pkg: pkg, file: file, set: set, isTest: strings.HasSuffix(rel, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("found %d Go files: is %s still the root?", len(all), root)
	}
	return all
}
