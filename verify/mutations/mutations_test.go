package main

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestPatches: each patch has its header, applies to the product as it is, and changes it.
func TestPatches(t *testing.T) {
	t.Parallel()
	module, err := moduleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list, err := load(".", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Fatal("there is no patch")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, m := range list {
		for _, file := range m.files {
			// go test caches a result until a file that the test has looked at changes, but only those whose path
			// begins with the module's: the product's files get such a path. Join would shorten it.
			if _, err := os.Stat(here + "/../../" + file); err != nil {
				t.Error(err)
			}
		}
		if _, err := m.overlay(t.Context(), module, dir); err != nil {
			t.Error(err)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	const header = "Wrong: it is.\nRoom: r\nTest: TestX\nSays: x\n"
	const diff = "diff --git a/r/a.go b/r/a.go\n--- a/r/a.go\n+++ b/r/a.go\n"
	m, err := parse("m", []byte(header+"Room: s\nTest: TestY\nSays: y\n\n"+diff))
	want := []finder{{"r", "TestX", "x"}, {"s", "TestY", "y"}}
	if err != nil || m.Wrong != "it is." || !slices.Equal(m.finders, want) ||
		!slices.Equal(m.files, []string{"r/a.go"}) || string(m.diff) != diff {
		t.Errorf("got %+v, %v", m, err)
	}
	for name, text := range map[string]string{
		"no diff":        header,
		"unknown field":  header + "Rooom: r\n" + diff,
		"twice":          header + "Test: TestY\n" + diff,
		"no test":        "Wrong: it is.\nRoom: r\nSays: x\n" + diff,
		"no second test": header + "Room: s\n" + diff,
		"no room":        "Wrong: it is.\nTest: TestX\nSays: x\n" + diff,
		"empty":          "Wrong: \n" + diff,
	} {
		if m, err := parse("m", []byte(text)); err == nil {
			t.Errorf("%s: parsed as %+v", name, m)
		}
	}
}

// TestParts: together the parts have every bug once.
func TestParts(t *testing.T) {
	t.Parallel()
	list := []mutation{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}}
	var parts []string
	for _, part := range []string{"1/3", "2/3", "3/3", ""} {
		of, err := partOf(list, part)
		if err != nil {
			t.Fatal(err)
		}
		names := ""
		for _, m := range of {
			names += m.Name
		}
		parts = append(parts, names)
	}
	if want := []string{"ad", "be", "c", "abcde"}; !slices.Equal(parts, want) {
		t.Errorf("got %q, want %q", parts, want)
	}
	for _, part := range []string{"0/3", "4/3", "3", "1/3x", "1/", "-1/3", "0/0", "6/6"} {
		if _, err := partOf(list, part); err == nil {
			t.Errorf("%s is a part", part)
		}
	}
}

// TestJobs: each test without a bug once, together with those of the same binary, then each bug by each of its tests.
func TestJobs(t *testing.T) {
	t.Parallel()
	x, y, other := finder{"r", "TestX", "x"}, finder{"r", "TestY", "y"}, finder{"s", "TestX", "x"}
	list := []mutation{
		{Name: "a", finders: []finder{x, other}}, {Name: "b", finders: []finder{x}}, {Name: "c", finders: []finder{y}},
	}
	var got []string
	for _, j := range jobs(list, []string{"oa", "ob", "oc"}, "dir") {
		line := j.bug + " " + j.binary.overlay + " " + j.binary.room
		for _, f := range j.found {
			line += " " + f.Test
		}
		got = append(got, line)
	}
	want := []string{"  r TestX TestY", "  s TestX", "a oa r TestX", "a oa s TestX", "b ob r TestX", "c oc r TestY"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestJudge: the gate reports tests that miss a bug.
func TestJudge(t *testing.T) {
	t.Parallel()
	failed := exec.Command("go", "no-such-command").Run()
	if exit := (*exec.ExitError)(nil); !errors.As(failed, &exit) {
		t.Fatalf("this is no exit code: %v", failed)
	}
	bug := finder{Test: "TestX/sub", Says: "it is wrong"}
	for name, c := range map[string]struct {
		out    string
		err    error
		missed string
	}{
		"found":              {"    x_test.go:1: it is wrong\n--- FAIL: TestX (0 s)", failed, ""},
		"not found":          {"--- PASS: TestX", nil, "passes with the bug"},
		"another failure":    {"--- FAIL: TestX", failed, "did not say"},
		"no failure of its":  {"panic: it is wrong", failed, "another way"},
		"could not be begun": {"", errors.New("no such file"), "no such file"},
	} {
		said, missed := bug.finds(c.out, c.err)
		if (missed == "") != (c.missed == "") || !strings.Contains(missed, c.missed) ||
			(missed == "") != (said == "it is wrong") {
			t.Errorf("%s: said %q, missed %q", name, said, missed)
		}
	}
	for name, c := range map[string]struct {
		test, out string
		err       error
		missed    string
	}{
		"passes":                    {"TestX", "--- PASS: TestX (0 s)", nil, ""},
		"passes, and another fails": {"TestX", "--- PASS: TestX (0 s)\n--- FAIL: TestY (0 s)", failed, ""},
		"fails anyway":              {"TestX", "--- FAIL: TestX (0 s)\n--- PASS: TestY (0 s)", failed, "without a bug"},
		"fails, long before the end": {
			"TestX", "=== CONT  TestX/a\n    x_test.go:1: it is wrong\n=== NAME  TestY\n--- FAIL: TestX (0 s)\n" +
				strings.Repeat("y_test.go:1: other\n", 1000), failed, "x_test.go:1: it is wrong\n--- FAIL: TestX",
		},
		"no test":      {"TestX", "PASS", nil, "no such test"},
		"no such part": {"TestX/sub", "--- PASS: TestX (0 s)", nil, "no such test"},
	} {
		missed := finder{Test: c.test}.passes(c.out, c.err)
		if (missed == "") != (c.missed == "") || !strings.Contains(missed, c.missed) {
			t.Errorf("%s: missed %q", name, missed)
		}
	}
}

// TestPatchNoLongerApplies: the error names the patch.
func TestPatchNoLongerApplies(t *testing.T) {
	t.Parallel()
	module, err := moduleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const diff = "--- a/go.mod\n+++ b/go.mod\n@@ -1 +1 @@\n-module somewhere/else\n+module nowhere\n"
	m, err := parse("gone", []byte("Wrong: it is.\nRoom: r\nTest: TestX\nSays: x\n"+diff))
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.overlay(t.Context(), module, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "gone.patch does not apply any more") {
		t.Errorf("applying it: %v", err)
	}
}
