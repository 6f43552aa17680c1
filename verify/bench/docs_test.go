package main

import (
	"os"
	"testing"

	"github.com/effectonce/effectonce/verify/bench/plan"
)

// TestScalingIsWritten: the tables of docs/scaling.md are generated from costs.json.
func TestScalingIsWritten(t *testing.T) {
	t.Parallel()
	const doc = "../../docs/scaling.md"
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	costs, err := plan.Read(costsFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, table := range plan.Sections(costs, plan.DefaultAssumptions()) {
		again, err := replaceSection(string(text), name, table)
		if err != nil {
			t.Errorf("%s: %v", doc, err)
		} else if again != string(text) {
			t.Errorf("%s: the table %q is not that of %s: go run . -model -docs ../../docs", doc, name, costsFile)
		}
	}
}

func TestReplaceSection(t *testing.T) {
	t.Parallel()
	got, err := replaceSection("a\n<!-- x -->\nold\n<!-- end of x -->\nb\n", "x", "new\n")
	if want := "a\n<!-- x -->\n\nnew\n\n<!-- end of x -->\nb\n"; err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := replaceSection("no marks", "x", "new"); err == nil {
		t.Error("a page without marks was taken")
	}
}
