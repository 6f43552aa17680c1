package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const lines = `{"seed":7,"duration":"1m0s","brokers":3,"faults":{"kill":2,"pause":1},"not_made":["x"],"unwell":["lag"],"lives":9,"kills_at_statements":{"relay: take":4},
"verdict":{"counts":{"events":100,"records":120,"duplicates":20,"effects":99,"unknown":5,"unknown_there":2,"audits":11},"violations":[{"invariant":"I1","name":"lost","count":3},{"invariant":"I1","name":"unapplied","count":2}]}}
{"seed":8,"duration":"2m0s","brokers":1,"faults":{"kill":1},"verdict":{"counts":{},"violations":null}}`

func TestPage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "page.md")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n" + begin + "\nold\n" + end + "\nafter\n")
	if err := run([]string{file}, strings.NewReader(lines)); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n" + begin, end + "\nafter\n", "| 7 | 1m0s | 3 | 3 | 9 | 4 | 100 | 120 | 20 | 99 | 11 | 5, 2 |",
		"| 7 | 5 | 0 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |", "| 8 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |",
		"2 kinds of faults, at least 1 of each; 1 scheduled faults were skipped,",
		"random kills at 1 different statements.",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(string(got), "old") {
		t.Error("the old text stayed")
	}
	for name, input := range map[string]string{"nothing": "", "nonsense": "{"} {
		if err := run([]string{file}, strings.NewReader(input)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	write("no marks")
	if err := run([]string{file}, strings.NewReader(lines)); err == nil {
		t.Error("a page without marks was taken")
	}
}
