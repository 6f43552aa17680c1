package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/seeded"
)

// binary is the compiled tests of a room, with the bugs in them.
type binary struct {
	room, tags string
	path       string
	catchers   []catcher

	ready chan struct{} // closed when the rest is there
	took  time.Duration
	err   error
}

// binaries lists what catchers need, in their order.
func binaries(dir string, chosen []catcher) (list []*binary) {
	for _, c := range chosen {
		i := slices.IndexFunc(list, func(b *binary) bool { return b.room == c.Room && b.tags == c.Tags })
		if i < 0 {
			i = len(list)
			list = append(list, &binary{
				room: c.Room, tags: c.Tags, path: filepath.Join(dir, fmt.Sprintf("%d.test", i)), ready: make(chan struct{}),
			})
		}
		list[i].catchers = append(list[i].catchers, c)
	}
	return list
}

func (b *binary) build(ctx context.Context) {
	defer close(b.ready)
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-tags", strings.TrimPrefix(b.tags+",bugs", ","), "-o", b.path, "./"+b.room)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.err = fmt.Errorf("building the tests of %s: %w\n%s", b.room, err, out)
	}
	b.took = time.Since(began)
}

// job is one run of a test: with its catcher's bug, or with none.
type job struct {
	catcher
	binary *binary
}

// result is what came of a job. Missed says why it is not as it must be, "" that it is.
type result struct {
	Bug     seeded.Bug `json:"bug"` // "": none
	Room    string     `json:"room"`
	Test    string     `json:"test"`
	Said    string     `json:"said,omitempty"`
	Seconds float64    `json:"seconds"`
	Limit   float64    `json:"limit_seconds"`
	Missed  string     `json:"missed,omitempty"`
}

func (j job) run(ctx context.Context) result {
	r := result{Bug: j.Bug, Room: j.Room, Test: j.Test, Limit: within.Seconds()}
	<-j.binary.ready
	if j.binary.err != nil {
		r.Missed = j.binary.err.Error()
		return r
	}
	began := time.Now()
	limit, cancel := context.WithTimeout(ctx, within+10*time.Second) // the test ends itself before that
	defer cancel()
	cmd := exec.CommandContext(limit, j.binary.path, "-test.run", pattern(j.Test), "-test.v", "-test.timeout", within.String())
	cmd.Dir = j.Room
	cmd.Env = append(os.Environ(), seeded.Variable+"="+string(j.Bug))
	// Told to stop, a test ends its servers; killed, it would leave them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	r.Seconds = time.Since(began).Seconds()
	r.Said, r.Missed = j.judge(out.String(), err)
	if r.Bug == "" && r.Missed == "" {
		r.Said = "passes without a bug"
	}
	return r
}

// judge reads what a run has written.
func (j job) judge(out string, err error) (said, missed string) {
	var exit *exec.ExitError
	name, _, _ := strings.Cut(j.Test, "/")
	switch {
	case err != nil && !errors.As(err, &exit):
		return "", err.Error()
	case j.Bug == "" && err != nil:
		return "", "it fails without a bug: " + tail(out)
	case j.Bug == "" && !strings.Contains(out, "--- PASS: "+j.Test+" "): // of a name that no subtest has, the test itself passes
		return "", "there is no such test, or it was skipped: " + tail(out)
	case j.Bug == "":
		return "", ""
	case !strings.Contains(out, seeded.Reached(j.Bug)):
		return "", "the test does not come to the bug: " + tail(out)
	case err == nil:
		return "", "the test passes with the bug"
	case !strings.Contains(out, "--- FAIL: "+name):
		return "", "it ended in another way than by failing: " + tail(out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, j.Says) {
			return short(line), ""
		}
	}
	return "", fmt.Sprintf("it failed and did not say %q: %s", j.Says, tail(out))
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
