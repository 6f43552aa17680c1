package seeded_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/seeded"
)

// TestEveryBugIsListed: what is declared is in All, once, with a sentence.
func TestEveryBugIsListed(t *testing.T) {
	t.Parallel()
	wrong := map[string]string{}
	for _, i := range seeded.All() {
		if _, twice := wrong[string(i.Bug)]; twice || i.Wrong == "" {
			t.Errorf("%s is listed twice, or without a word", i.Bug)
		}
		wrong[string(i.Bug)] = i.Wrong
	}
	file, err := parser.ParseFile(token.NewFileSet(), "seeded.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Bug" {
			return true
		}
		name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if declared++; wrong[name] == "" {
			t.Errorf("%s is declared and not listed", name)
		}
		return true
	})
	if declared != len(wrong) || declared < 15 {
		t.Errorf("%d bugs are declared and %d listed", declared, len(wrong))
	}
}

// TestNoBugIsBuiltIn: the relay that users run has not even the name of one.
func TestNoBugIsBuiltIn(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "relay")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/relay").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(program, []byte("-- relay: settle\n")) {
		t.Fatal("the program does not hold its texts as they are: this test shows nothing")
	}
	for _, i := range seeded.All() {
		if bytes.Contains(program, []byte(i.Bug)) || bytes.Contains(program, []byte(i.Wrong)) {
			t.Errorf("the program contains %s", i.Bug)
		}
	}
	if bytes.Contains(program, []byte(seeded.Variable)) || strings.Contains(string(program), "-- relay: release into outbox") {
		t.Error("the program knows how to switch a bug on")
	}
}
