package child_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// fakeTest is a test that ends when it is told to.
type fakeTest struct {
	testing.TB
	failed   bool
	cleanups []func()
	said     []string
}

func (*fakeTest) Helper()            {}
func (f *fakeTest) Failed() bool     { return f.failed }
func (f *fakeTest) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }

func (f *fakeTest) Logf(_ string, args ...any) { f.said = append(f.said, args[1].(string)) }

func (f *fakeTest) end() {
	for _, c := range slices.Backward(f.cleanups) {
		c()
	}
}

// TestShowLog: only a failed test shows what its servers logged, once, and only what they logged meanwhile.
func TestShowLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write := func(text string) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil || f.Close() != nil {
			t.Fatal(err)
		}
	}
	write("of an earlier test\n")
	red, green, far := &fakeTest{failed: true}, &fakeTest{}, &fakeTest{failed: true}
	for _, f := range []*fakeTest{red, red, green} {
		child.ShowLog(f, "a server", path)
	}
	child.ShowLog(red, "a server without a log", "")
	write("deadlock detected\n")
	red.end()
	green.end()
	if len(green.said) > 0 || len(red.said) != 1 || red.said[0] != "deadlock detected" {
		t.Errorf("green: %q, red: %q", green.said, red.said)
	}
	child.ShowLog(far, "a server", path)
	write(strings.Repeat("a line of nineteen.\n", 1000))
	far.end()
	if len(far.said) != 1 || len(far.said[0]) > 4000 || !strings.HasPrefix(far.said[0], "a line of") {
		t.Errorf("of a long log: %q", far.said)
	}
}
