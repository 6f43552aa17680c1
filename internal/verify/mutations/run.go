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

// within is how long a test may take to find a bug. Nearly all need less than a second; the limit is for busy machines, and
// for a test that would wait for ever instead of failing.
const within = 2 * time.Minute

// binary is the compiled tests of a package.
type binary struct {
	room, tags string
	overlay    string // "": the product as it is
	path       string
}

func (b binary) build(ctx context.Context, module string) error {
	args := []string{"test", "-c", "-o", b.path, "-tags", b.tags}
	if b.overlay != "" {
		args = append(args, "-overlay", b.overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+b.room)...)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the tests of %s: %w\n%s", b.room, err, out)
	}
	return nil
}

// test runs one test of the binary, and returns what it wrote.
func (b binary) test(ctx context.Context, module, name string) (string, error) {
	limit, cancel := context.WithTimeout(ctx, within+10*time.Second) // the test ends itself before that
	defer cancel()
	cmd := exec.CommandContext(limit, b.path, "-test.run", pattern(name), "-test.v", "-test.timeout", within.String())
	cmd.Dir = filepath.Join(module, b.room)
	// Told to stop, a test ends its servers; killed, it would leave them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// clean reports why a test's output is not that of a test that ran and passed, or "".
func clean(test, out string, err error) string {
	switch {
	case err != nil:
		return fmt.Sprintf("it fails without a bug: %v: %s", err, tail(out))
	case !strings.Contains(out, "--- PASS: "+test+" "): // of a name that no subtest has, the test itself passes
		return "there is no such test, or it was skipped: " + tail(out)
	}
	return ""
}

// found returns the line in which the test says that it has found the bug, or why it has not.
func (m mutation) found(out string, err error) (said, missed string) {
	var exit *exec.ExitError
	name, _, _ := strings.Cut(m.Test, "/")
	switch {
	case err != nil && !errors.As(err, &exit):
		return "", err.Error()
	case err == nil:
		return "", "the test passes with the bug"
	case !strings.Contains(out, "--- FAIL: "+name):
		return "", "it ended in another way than by failing: " + tail(out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, m.Says) {
			return short(line), ""
		}
	}
	return "", fmt.Sprintf("it failed and did not say %q: %s", m.Says, tail(out))
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
