//go:build unix

package secret

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCommand: a command is run for each reveal, but not again before its secret expires.
func TestCommand(t *testing.T) {
	t.Parallel()
	runs := filepath.Join(t.TempDir(), "runs")
	counted := "echo x >> " + runs + "; "
	printed := func(expires time.Duration) string {
		return counted + `printf '{"password": "tok en", "expires": "` + time.Now().Add(expires).Format(time.RFC3339) +
			`"}'`
	}
	for name, c := range map[string]struct {
		line, text string
		runs       int
	}{
		"plain":        {counted + "echo 'tok en'", "tok en", 2},
		"valid":        {printed(time.Hour), "tok en", 1},
		"about to end": {printed(30 * time.Second), "tok en", 2},
		"without end":  {counted + `echo '{"password":"tok en"}'`, "tok en", 2},
	} {
		v := ByCommand(c.line)
		for range 2 {
			if got, err := v.Reveal(); got != c.text || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if lines, _ := os.ReadFile(runs); strings.Count(string(lines), "x") != c.runs {
			t.Errorf("%s: %q, want %d runs", name, lines, c.runs)
		}
		_ = os.Remove(runs)
	}
}

// TestCommandFails: the error says what to do, and contains no output of the command.
func TestCommandFails(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"echo canary; echo canary >&2; exit 3":       "failed (exit status 3): run it by hand",
		"printf ''":                                  "printed nothing",
		"echo '{\"password\": \"canary\", expires}'": "printed no {",
		"echo '{\"expires\": \"canary\"}'":           "printed no {",
	} {
		got, err := ByCommand(line).Reveal()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") || got != "" {
			t.Errorf("%s: %q, %v; want %s", line, got, err, want)
		}
	}
}

// TestCommandHangs: a command that hangs is killed with its children, and the next reveal runs it again.
func TestCommandHangs(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	alive, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alive.Close() }()
	c := command{timeout: time.Second, line: "(exec 3> " + fifo + "; sleep 3600) & wait"}
	if got, err := c.reveal(); err == nil || !strings.Contains(err.Error(), "was killed") || got != "" {
		t.Errorf("%q, %v", got, err)
	}
	// The pipe ends when no process has it open for writing.
	if err := alive.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(alive); err != nil {
		t.Errorf("what it had started lives on: %v", err)
	}
	c.timeout, c.line = time.Minute, "echo token"
	if got, err := c.reveal(); got != "token" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
