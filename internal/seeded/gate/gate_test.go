package main

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/seeded"
)

// TestEveryBugHasACatcher: each bug that is listed, once, in the same order.
func TestEveryBugHasACatcher(t *testing.T) {
	t.Parallel()
	var have, want []seeded.Bug
	for _, c := range catchers() {
		have = append(have, c.Bug)
		if c.Room == "" || c.Test == "" || c.Says == "" {
			t.Errorf("the catcher of %s is not whole: %+v", c.Bug, c)
		}
	}
	for _, i := range seeded.All() {
		want = append(want, i.Bug)
	}
	for _, c := range more() {
		if !slices.Contains(have, c.Bug) {
			t.Errorf("%s is found by a whole system, and has no catcher", c.Bug)
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("catchers of\n%v\nwant\n%v", have, want)
	}
}

// TestJudge: the gate can say no.
func TestJudge(t *testing.T) {
	t.Parallel()
	failed := exec.Command("go", "no-such-command").Run()
	if exit := (*exec.ExitError)(nil); !errors.As(failed, &exit) {
		t.Fatalf("this is no exit code: %v", failed)
	}
	bug := job{catcher: catcher{Bug: "b", Test: "TestX/sub", Says: "it is wrong"}}
	reached := seeded.Reached("b") + "\n"
	for name, c := range map[string]struct {
		job    job
		out    string
		err    error
		missed string
	}{
		"found":              {bug, reached + "    x_test.go:1: it is wrong\n--- FAIL: TestX (0 s)", failed, ""},
		"not found":          {bug, reached + "--- PASS: TestX", nil, "passes with the bug"},
		"another failure":    {bug, reached + "--- FAIL: TestX", failed, "did not say"},
		"not reached":        {bug, "it is wrong\n--- FAIL: TestX", failed, "does not come to the bug"},
		"no failure of its":  {bug, reached + "panic: it is wrong", failed, "another way"},
		"clean":              {job{catcher: catcher{Test: "TestX"}}, "--- PASS: TestX (0 s)", nil, ""},
		"fails anyway":       {job{catcher: catcher{Test: "TestX"}}, "--- FAIL: TestX", failed, "without a bug"},
		"no test":            {job{catcher: catcher{Test: "TestX"}}, "PASS", nil, "no such test"},
		"no such part":       {job{catcher: catcher{Test: "TestX/sub"}}, "--- PASS: TestX (0 s)", nil, "no such test"},
		"could not be begun": {bug, "", errors.New("no such file"), "no such file"},
	} {
		said, missed := c.job.judge(c.out, c.err)
		if (missed == "") != (c.missed == "") || !strings.Contains(missed, c.missed) || (c.err == failed && missed == "") != (said == "it is wrong") {
			t.Errorf("%s: said %q, missed %q", name, said, missed)
		}
	}
}
