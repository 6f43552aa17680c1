package failpoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/failpoint"
)

const root = "../.."

// TestTable: every name that is declared stands in the table once, with its moment.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[failpoint.Name]bool{}
	for _, p := range failpoint.All() {
		if seen[p.Name] || p.When == "" || strings.Count(string(p.Name), "/") != 1 {
			t.Errorf("%s: it stands there twice, or says nothing", p.Name)
		}
		seen[p.Name] = true
	}
	for ident, name := range declared(t) {
		if !seen[name] {
			t.Errorf("%s is not in the table: add it, or nobody is killed there", ident)
		}
	}
}

// TestPlaced: every point stands somewhere in the code, and those with an error path stand where an error can go.
func TestPlaced(t *testing.T) {
	t.Parallel()
	names, errs := declared(t), map[failpoint.Name]bool{}
	for _, p := range failpoint.All() {
		errs[p.Name] = p.Errs
	}
	placed := map[failpoint.Name]int{failpoint.PublisherSent: 1} // within Produced
	walk(t, func(path string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 || !of(call.Fun, "failpoint") || !of(call.Args[0], "failpoint") {
				return true
			}
			name := names[call.Args[0].(*ast.SelectorExpr).Sel.Name]
			placed[name]++
			if how := call.Fun.(*ast.SelectorExpr).Sel.Name; (how == "Hit") == errs[name] {
				t.Errorf("%s: %s is reached by %s; the table says the error path is %v", path, name, how, errs[name])
			}
			return true
		})
	})
	for _, p := range failpoint.All() {
		if placed[p.Name] == 0 && !strings.HasPrefix(string(p.Name), "producer/") {
			t.Errorf("%s is nowhere in the code", p.Name)
		}
	}
}

// TestNoCost: without the build tag the command knows no point's name, with it all of those that it can reach.
func TestNoCost(t *testing.T) {
	t.Parallel()
	without, with := build(t), build(t, "-tags", "failpoints")
	for _, p := range failpoint.All() {
		if strings.Contains(without, string(p.Name)) {
			t.Errorf("%s is in a binary that was built without the tag", p.Name)
		}
		if !strings.Contains(with, string(p.Name)) {
			t.Errorf("%s is not in the binary that was built with the tag", p.Name)
		}
	}
}

// TestStart: a process with settings that cannot be read says why and ends.
func TestStart(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "relay")
	buildTo(t, bin, "-tags", "failpoints")
	for settings, want := range map[string]string{
		"relay/claim":                   "write point=action",
		"relay/nowhere=kill":            "no point is called relay/nowhere",
		"relay/claim=explode":           "no action is called",
		"relay/beat=error":              "has no error path",
		"relay/claim=kill@0":            "the number of a hit",
		"relay/claim=delay":             "write delay(200ms)",
		"relay/claim=kill(2s)":          "takes no time",
		"relay/claim-committed=error%2": "a probability",
		"relay/claim=kill*x":            "a number of times",
	} {
		cmd := exec.Command(bin, "help")
		cmd.Env = append(os.Environ(), failpoint.EnvSettings+"="+settings)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %q does not say %q", settings, err, out, want)
		}
	}
	cmd := exec.Command(bin, "help")
	cmd.Env = append(os.Environ(), failpoint.EnvSettings+"=relay/*=delay(1ms)*%0.5;inbox/released=kill@2; relay/settled = error")
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("a space before the equals sign is part of no name: %s", out)
	}
}

func build(t *testing.T, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "relay")
	buildTo(t, bin, args...)
	b, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	// The paths of source files begin as names do.
	return regexp.MustCompile(`[a-z]+/[a-z_]+\.go`).ReplaceAllString(string(b), "")
}

func buildTo(t *testing.T, bin string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"build"}, args...), "-o", bin, "./cmd/relay")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
}

// declared are the names by their identifiers.
func declared(t *testing.T) map[string]failpoint.Name {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]failpoint.Name{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			names[v.Names[0].Name] = failpoint.Name(text)
		}
		return true
	})
	return names
}

// walk parses the rooms' files.
func walk(t *testing.T, do func(path string, file *ast.File)) {
	t.Helper()
	for _, room := range []string{"outbox", "relay", "publisher", "consumer", "inbox"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err == nil {
				do(path, file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func of(e ast.Expr, pkg string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}
