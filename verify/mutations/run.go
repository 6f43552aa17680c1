package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// within is how long a test may take to find a bug. Nearly all need less than a second. It is longer than what a test
// itself waits for, up to 5 minutes, and it ends a test that would wait for ever instead of failing.
const within = 6 * time.Minute

// binary is the compiled tests of a package.
type binary struct {
	room    string
	overlay string // "": the product as it is
	path    string
}

// build returns the processor time that it has used. Nobody debugs these binaries, and each of them is built for one
// run, so what makes them fast, or readable for a debugger, is left out. That halves the time.
func (b binary) build(ctx context.Context, module string) (time.Duration, error) {
	args := []string{
		"test", "-c", "-o", b.path, "-vet=off", "-ldflags=-s", "-gcflags=" + own + "=-dwarf=false -l",
	}
	if b.overlay != "" {
		args = append(args, "-overlay", b.overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+b.room)...)
	cmd.Dir = module
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("building the tests of %s: %w\n%s", b.room, err, out)
	}
	return used(cmd), err
}

// own are the packages of this module: what others have written is compiled already, as all tests want it.
const own = "github.com/effectonce/effectonce/..."

func used(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// test runs tests of the binary, and returns their output and the processor time that they have used.
func (b binary) test(ctx context.Context, module string, tests []finder) (string, time.Duration, error) {
	patterns := make([]string, len(tests))
	for i, f := range tests {
		patterns[i] = pattern(f.Test)
	}
	timeout := within + time.Duration(len(tests)-1)*within/10
	limit, cancel := context.WithTimeout(ctx, timeout+10*time.Second) // the test ends itself before that
	defer cancel()
	cmd := exec.CommandContext(limit, b.path, "-test.run", strings.Join(patterns, "|"), "-test.v",
		"-test.parallel", "4", "-test.timeout", timeout.String())
	cmd.Dir = filepath.Join(module, b.room)
	// Told to stop, a test ends its servers; killed, it would leave them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), used(cmd), err
}

// passes reports why an output is not that of a test that ran and passed, or "".
func (f finder) passes(out string, err error) string {
	switch {
	case strings.Contains(out, "--- PASS: "+f.Test+" "): // of a name that no subtest has, the test itself passes
		return ""
	case err != nil:
		return fmt.Sprintf("it fails without a bug: %v: %s", err, f.about(out))
	}
	return "there is no such test, or it was skipped: " + tail(out)
}

// about returns what the test printed, of an output in which the lines of parallel tests alternate, or else its end.
func (f finder) about(out string) string {
	name, _, _ := strings.Cut(f.Test, "/")
	lines, prints := "", false
	for line := range strings.Lines(out) {
		if header := strings.Fields(line); len(header) > 2 && header[0] == "===" {
			of, _, _ := strings.Cut(header[2], "/")
			prints = of == name
			continue
		}
		if prints || strings.Contains(line, "--- FAIL: "+name) {
			lines += line
		}
	}
	if lines == "" {
		return tail(out)
	}
	return tail(lines)
}

// finds returns the line in which the test says that it has found the bug, or why it has not.
func (f finder) finds(out string, err error) (said, missed string) {
	var exit *exec.ExitError
	name, _, _ := strings.Cut(f.Test, "/")
	switch {
	case err != nil && !errors.As(err, &exit):
		return "", err.Error()
	case err == nil:
		return "", "the test passes with the bug"
	case !strings.Contains(out, "--- FAIL: "+name):
		return "", "it ended in another way than by failing: " + tail(out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, f.Says) {
			return short(line), ""
		}
	}
	return "", fmt.Sprintf("it failed and did not say %q: %s", f.Says, f.about(out))
}

// pattern is a test's name as -test.run wants it: nothing beside it.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	return strings.Join(parts, "/")
}

// short is a line for a table.
func short(line string) string {
	line = strings.TrimSpace(line)
	if _, text, found := strings.Cut(line, "_test.go:"); found {
		if _, text, found = strings.Cut(text, ": "); found {
			line = text
		}
	}
	if len(line) > 110 {
		line = strings.ToValidUTF8(line[:110], "") + "..."
	}
	return line
}

// tail is the end of an output.
func tail(out string) string {
	out = strings.TrimSpace(out)
	return strings.ToValidUTF8(out[max(0, len(out)-2000):], "")
}
