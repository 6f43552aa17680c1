package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const page = "text\n| rule | says | shown by | result |\n|---|---|---|---|\n" +
	"| P1 | one | `a.TestOne`, `a/b.TestTwo/sub` | |\n" +
	"| P2 | two | `a.TestThree` | passed |\n" +
	"| P3 | three | nothing | passed |\n"

func TestWritesResults(t *testing.T) {
	t.Parallel()
	tests := `{"Action":"run","Package":"github.com/effectonce/effectonce/a","Test":"TestOne"}
{"Action":"pass","Package":"github.com/effectonce/effectonce/a","Test":"TestOne"}
not json
{"Action":"pass","Package":"github.com/effectonce/effectonce/a/b","Test":"TestTwo/sub"}
{"Action":"skip","Package":"github.com/effectonce/effectonce/a","Test":"TestThree"}
{"Action":"pass","Package":"github.com/effectonce/effectonce/a"}
`
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run([]string{file}, strings.NewReader(tests), &out)
	if err == nil || !strings.Contains(err.Error(), "P2 (skip: a.TestThree), P3 (no test)") {
		t.Fatalf("a skipped test and a rule without one must fail: %v", err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| P1 | one | `a.TestOne`, `a/b.TestTwo/sub` | passed |",
		"| P2 | two | `a.TestThree` | skip: a.TestThree |",
		"| P3 | three | nothing | no test |",
	} {
		if !strings.Contains(string(got), want+"\n") {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestMissingTestIsNoPass(t *testing.T) {
	t.Parallel()
	_, passed, failed := fill(page, map[string]string{"a.TestOne": "pass"})
	if passed != 0 || len(failed) != 3 || !strings.Contains(failed[0], "not run: a/b.TestTwo/sub") {
		t.Fatalf("passed %d, failed %q", passed, failed)
	}
}

func TestListsTestsNamedForARule(t *testing.T) {
	t.Parallel()
	text, _, failed := fill(page, map[string]string{
		"a.TestOne": "pass", "a/b.TestTwo/sub": "pass", "a.TestThree": "pass",
		"a/b.TestP1More": "pass", "a/b.TestP1More/sub": "pass", "a.TestP7_Without": "pass", "a.TestP2Skipped": "skip",
	})
	if want := "| P1 | one | `a.TestOne`, `a/b.TestTwo/sub`, `a/b.TestP1More` | passed |\n"; !strings.Contains(text,
		want) {
		t.Errorf("want %q in\n%s", want, text)
	}
	if want := "P7 (no row for a.TestP7_Without)"; !slices.Contains(failed, want) || len(failed) != 2 {
		t.Errorf("want %q and P3 without a test in %q", want, failed)
	}
	again, _, _ := fill(text, map[string]string{"a/b.TestP1More": "fail"})
	if strings.Count(again, "TestP1More`") != 1 {
		t.Errorf("listed twice:\n%s", again)
	}
}
