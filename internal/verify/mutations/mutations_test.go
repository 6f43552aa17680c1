package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestPatches: each of them has its header, applies to the product as it is, and changes it.
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
	dir := t.TempDir()
	for _, m := range list {
		if _, err := m.overlay(t.Context(), module, dir); err != nil {
			t.Error(err)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	const header, diff = "Wrong: it is.\nRoom: r\nTest: TestX\nSays: x\n", "diff --git a/r/a.go b/r/a.go\n--- a/r/a.go\n+++ b/r/a.go\n"
	m, err := parse("m", []byte(header+"Tags: t\n\n"+diff))
	if err != nil || m.Wrong != "it is." || m.Room != "r" || m.Test != "TestX" || m.Says != "x" || m.Tags != "t" ||
		len(m.files) != 1 || m.files[0] != "r/a.go" || string(m.diff) != diff {
		t.Errorf("got %+v, %v", m, err)
	}
	for name, text := range map[string]string{
		"no diff":       header,
		"unknown field": header + "Rooom: r\n" + diff,
		"twice":         header + "Room: r\n" + diff,
		"no test":       "Wrong: it is.\nRoom: r\nSays: x\n" + diff,
		"empty":         "Wrong: \n" + diff,
	} {
		if m, err := parse("m", []byte(text)); err == nil {
			t.Errorf("%s: parsed as %+v", name, m)
		}
	}
}

// TestJudge: the gate can say no.
func TestJudge(t *testing.T) {
	t.Parallel()
	failed := exec.Command("go", "no-such-command").Run()
	if exit := (*exec.ExitError)(nil); !errors.As(failed, &exit) {
		t.Fatalf("this is no exit code: %v", failed)
	}
	bug := mutation{Test: "TestX/sub", Says: "it is wrong"}
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
		said, missed := bug.found(c.out, c.err)
		if (missed == "") != (c.missed == "") || !strings.Contains(missed, c.missed) || (missed == "") != (said == "it is wrong") {
			t.Errorf("%s: said %q, missed %q", name, said, missed)
		}
	}
	for name, c := range map[string]struct {
		test, out string
		err       error
		missed    string
	}{
		"passes":       {"TestX", "--- PASS: TestX (0 s)", nil, ""},
		"fails anyway": {"TestX", "--- FAIL: TestX", failed, "without a bug"},
		"no test":      {"TestX", "PASS", nil, "no such test"},
		"no such part": {"TestX/sub", "--- PASS: TestX (0 s)", nil, "no such test"},
	} {
		if missed := clean(c.test, c.out, c.err); (missed == "") != (c.missed == "") || !strings.Contains(missed, c.missed) {
			t.Errorf("%s: missed %q", name, missed)
		}
	}
}

// TestAPatchThatNoLongerApplies is told by its name.
func TestAPatchThatNoLongerApplies(t *testing.T) {
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
	if _, err := m.overlay(t.Context(), module, t.TempDir()); err == nil || !strings.Contains(err.Error(), "gone.patch does not apply any more") {
		t.Errorf("applying it: %v", err)
	}
}
