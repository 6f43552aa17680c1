package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const page = "text\n| rule | says | shown by |\n|---|---|---|\n" +
	"| P1 | one | `a.TestOne`, `a/b.TestTwo/sub` |\n" +
	"| P2 | two | `a.TestThree` |\n" +
	"| P3.1 | three | |\n"

func TestSaysWhatDidNotPass(t *testing.T) {
	t.Parallel()
	tests := `{"Action":"run","Package":"github.com/effectonce/effectonce/a","Test":"TestOne"}
{"Action":"pass","Package":"github.com/effectonce/effectonce/a","Test":"TestOne"}
not json
{"Action":"pass","Package":"github.com/effectonce/effectonce/a/b","Test":"TestTwo/sub"}
{"Action":"skip","Package":"github.com/effectonce/effectonce/a","Test":"TestThree"}
{"Action":"skip","Package":"github.com/effectonce/effectonce/a","Test":"TestP1Skipped"}
{"Action":"pass","Package":"github.com/effectonce/effectonce/a"}
`
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run([]string{file}, strings.NewReader(tests), &out)
	if err == nil || !strings.Contains(err.Error(), "P2 (skip: a.TestThree), P3.1 (no test)") {
		t.Fatalf("a skipped test and a rule without one must fail: %v", err)
	}
	if want := "1 rules passed\nskipped: a.TestP1Skipped\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestMissingTestIsNoPass(t *testing.T) {
	t.Parallel()
	passed, _, failed := judgeAll(page, map[string]string{"a.TestOne": "pass"})
	if passed != 0 || len(failed) != 3 || !strings.Contains(failed[0], "not run: a/b.TestTwo/sub") {
		t.Fatalf("passed %d, failed %q", passed, failed)
	}
}

func TestNamesCount(t *testing.T) {
	t.Parallel()
	results := map[string]string{
		"a.TestOne": "pass", "a/b.TestTwo/sub": "pass", "a.TestThree": "pass",
		"a/b.TestP3_1_More": "pass", "a/b.TestP3_1_More/sub": "pass", "a.TestP7_Without": "pass",
	}
	passed, _, failed := judgeAll(page, results)
	if want := []string{"P7 (no row for a.TestP7_Without)"}; passed != 3 || !slices.Equal(failed, want) {
		t.Errorf("passed %d, failed %q, want %q", passed, failed, want)
	}
	results["a/b.TestP3_1_More"] = "fail"
	if _, _, failed := judgeAll(page, results); !slices.Contains(failed, "P3.1 (fail: a/b.TestP3_1_More)") {
		t.Errorf("failed %q", failed)
	}
	for name, row := range map[string]string{
		"a.TestI10Leak": "| I10 | ten | |", "a.FuzzWAL10Decoder": "| WAL | eleven | |",
		"a/b.TestStories/P3.1.lock_first": "| P3.1 | three | |", "a.TestModel/P2.cursor": "| P2 | two | |",
	} {
		if passed, _, failed := judgeAll(row, map[string]string{name: "pass"}); passed != 1 || failed != nil {
			t.Errorf("%s: passed %d, failed %q", name, passed, failed)
		}
	}
}
