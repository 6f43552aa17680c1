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

// within is how long a test may take to find a bug. Nearly all need less than a second. It is longer than
// the waits inside tests, up to 5 minutes, and ends a test that would hang instead of failing.
const within = 6 * time.Minute

// binary is the compiled tests of a package.
type binary struct {
	room    string
	overlay string // "": the product as it is
	path    string
}

// build returns the processor time that it has used. Each binary is built for one run and never debugged, so it is
// built without optimizations and debug information. That halves the time.
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

// own are the packages of this module; dependencies are in the build cache, compiled with the usual flags.
const own = "github.com/effectonce/effectonce/..."

func used(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// test runs tests of the binary, and returns their output and their processor time.
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

// passes returns "" if the output shows that the test ran and passed, otherwise the reason why not.
func (f finder) passes(out string, err error) string {
	switch {
	case strings.Contains(out, "--- PASS: "+f.Test+" "): // the space excludes subtests
		return ""
	case err != nil:
		return fmt.Sprintf("it fails without a bug: %v: %s", err, f.about(out))
	}
	return "there is no such test, or it was skipped: " + tail(out)
}

// about returns the test's lines of an output in which parallel tests alternate; if it has none, the output's end.
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

// finds returns the line with the finder's Says, or the reason why the test has not found the bug.
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

// pattern returns a -test.run pattern that matches this test alone.
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
