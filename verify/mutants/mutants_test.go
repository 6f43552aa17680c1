package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSurvivorsExist: each name in survivors.txt is a mutant of the current code.
func TestSurvivorsExist(t *testing.T) {
	t.Parallel()
	reasons, err := parse(survivors)
	if err != nil {
		t.Fatal(err)
	}
	module, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range rooms {
		names, _, err := r.mutate(t.Context(), module, t.TempDir())
		if err != nil {
			t.Fatalf("%s: %v", r.dir, err)
		}
		all = append(all, names...)
	}
	for name := range reasons {
		if !slices.Contains(all, name) {
			t.Errorf("there is no mutant %s any more: remove it, or correct its name", name)
		}
	}
}

// A package with a test that kills all but one of its mutants.
const (
	code = `package small

func Sum(list []int, limit int) (sum int, over bool) {
	for _, n := range list {
		switch n {
		case 1, 2:
			continue
		}
		sum += n
		if sum > limit && limit != 0 {
			return 0, true
		}
	}
	return sum, false
}
`
	test = `package small

import "testing"

func TestSum(t *testing.T) {
	for _, c := range []struct {
		list       []int
		limit, sum int
		over       bool
	}{
		{nil, 5, 0, false}, {[]int{1, 3, 2, 4}, 0, 7, false}, {[]int{3, 5}, 7, 0, true}, {[]int{3, 5}, 9, 8, false},
	} {
		if sum, over := Sum(c.list, c.limit); sum != c.sum || over != c.over {
			t.Errorf("%v: %d, %v", c, sum, over)
		}
	}
}
`
)

// TestRun: the mutants of every operator are compiled into one binary, and survivors are found by name. compare reports
// a killed mutant with a reason, a survivor without a reason, and a reason without a mutant.
func TestRun(t *testing.T) {
	t.Parallel()
	module := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example\n\ngo 1.24\n", "small/small.go": code, "small/small_test.go": test,
	} {
		path := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, alive, err := room{dir: "small", files: []string{"small.go"}}.run(t.Context(), module, "")
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "small/small.go Sum: "
	want := []string{
		"without: case 1", "without: case 2", "without: continue", "without: sum += n", "sum > limit && limit != 0: ||",
		"sum > limit: >=", "not: sum > limit", "not: limit != 0", "limit != 0: 0 + 1", "return 0, true: 0 + 1",
		"zero: true in return 0, true", "zero: sum in return sum, false", "zero: false in return sum, false",
	}
	slices.Sort(want)
	var got []string
	for _, name := range slices.Sorted(slices.Values(all)) {
		got = append(got, strings.TrimPrefix(name, prefix))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the mutants are %q, want %q", got, want)
	}
	if !slices.Equal(alive, []string{prefix + "sum > limit: >="}) {
		t.Errorf("alive: %q", alive)
	}
	wrong := compare("small", all, alive, map[string]string{
		prefix + "not: sum > limit": "x", prefix + "gone": "x", "other/other.go F: not: x": "x",
	})
	if len(wrong) != 3 || !strings.HasPrefix(wrong[0], "KILLED") || !strings.HasPrefix(wrong[1], "NO MUTANT") ||
		!strings.HasPrefix(wrong[2], "SURVIVES") {
		t.Errorf("%q", wrong)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	reasons, err := parse("# text\n\na: b // c // why\n")
	if err != nil || len(reasons) != 1 || reasons["a: b // c"] != "why" {
		t.Errorf("%v, %v", reasons, err)
	}
	for _, text := range []string{"a: b\n", "a // x\na // y\n", "a // \n"} {
		if reasons, err := parse(text); err == nil {
			t.Errorf("%q is %v", text, reasons)
		}
	}
}
