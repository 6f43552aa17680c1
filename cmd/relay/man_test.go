package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestMan: the page names each command, flag and exit code, and what formats pages has nothing to say against it.
func TestMan(t *testing.T) {
	t.Parallel()
	code, page, stderr := command(t, environment{}, "man")
	if code != codeOK || !strings.HasPrefix(page, ".TH RELAY 1 ") || strings.Contains(page, "\n\n") {
		t.Fatalf("exit code %d: %s%.200s", code, stderr, page)
	}
	want := []string{"\n.SH EXIT STATUS\n.IP \\(bu 4\n0: done; ", "\n.SH POSTGRES\n", "$RELAY_DATABASE_URL[_FILE])\n"}
	for _, node := range model(t).Leaves(true) {
		want = append(want, "\n.SS "+roff(node.FullPath())+"\n")
		for _, flag := range node.Flags {
			want = append(want, "\n\\fB"+roff(flag.Summary())+"\\fR\n")
		}
	}
	for _, text := range want {
		if !strings.Contains(page, text) {
			t.Errorf("no %q", text)
		}
	}
	for _, linter := range [][]string{
		{"groff", "-ww", "-man", "-Tutf8", "-z"},
		{"mandoc", "-T", "lint", "-W", "error"},
	} {
		t.Run(linter[0], func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(linter[0])
			if err != nil {
				t.Skip(err)
			}
			cmd := exec.CommandContext(t.Context(), path, linter[1:]...)
			cmd.Stdin = strings.NewReader(page)
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
