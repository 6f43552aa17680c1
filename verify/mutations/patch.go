package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mutation is a bug as a patch, and the tests that must find it.
type mutation struct {
	Name    string // the file's name without .patch
	Wrong   string // what the program does with the bug, and the consequence for its user
	finders []finder

	files []string // changed by the patch, as paths in the module
	diff  []byte
}

// finder is a test that must find a bug.
type finder struct {
	Room string // the directory of the test's package
	Test string // the test, or one of its subtests
	Says string // a text that the test prints only if it has found the bug
}

// load reads the mutations of a directory: the named ones, or all.
func load(dir string, names []string) ([]mutation, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	var list []mutation
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(filepath.Base(path), ".patch"), text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = append(list, m)
	}
	if len(names) == 0 {
		return list, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(list, func(m mutation) bool { return m.Name == name }) {
			return nil, fmt.Errorf("%s.patch is not in %s", name, dir)
		}
	}
	return slices.DeleteFunc(list, func(m mutation) bool { return !slices.Contains(names, m.Name) }), nil
}

// parse reads "Field: value" lines up to the diff. Each Room begins another finder.
func parse(name string, text []byte) (mutation, error) {
	m := mutation{Name: name}
	at := bytes.Index(text, []byte("diff --git "))
	if at < 0 {
		at = bytes.Index(text, []byte("--- a/"))
	}
	if at < 0 {
		return m, errors.New("no diff in it: want what `git diff` prints below the header lines")
	}
	m.diff = text[at:]
	fields := map[string]*string{"Wrong": &m.Wrong}
	for line := range strings.Lines(string(text[:at])) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		field, value, _ := strings.Cut(line, ": ")
		if field == "Room" {
			m.finders = append(m.finders, finder{})
			f := &m.finders[len(m.finders)-1]
			fields = map[string]*string{
				"Wrong": &m.Wrong, "Room": &f.Room, "Test": &f.Test, "Says": &f.Says,
			}
		}
		to := fields[field]
		if to == nil || *to != "" || value == "" {
			return m, fmt.Errorf("%q: want a line of Wrong, and for each test one of Room, then of Test and Says", line)
		}
		*to = value
	}
	if m.Wrong == "" || len(m.finders) == 0 ||
		slices.ContainsFunc(m.finders, func(f finder) bool { return f.Test == "" || f.Says == "" }) {
		return m, errors.New("want a line each of Wrong, Room, Test and Says above the diff")
	}
	for line := range strings.Lines(string(m.diff)) {
		if file, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "+++ b/"); found {
			m.files = append(m.files, file)
		}
	}
	return m, nil
}

// overlay applies the patch to copies below dir, and writes the file for `go test -overlay`: the module's files do not
// change.
func (m mutation) overlay(ctx context.Context, module, dir string) (path string, err error) {
	dir = filepath.Join(dir, m.Name)
	replace := map[string]string{}
	for _, file := range m.files {
		text, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(module, file)] = to
	}
	// Every machine with a clone has git, and git applies no patch whose context has changed.
	cmd := exec.CommandContext(ctx, "git", "apply", "-p1", "-")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	cmd.Stdin = bytes.NewReader(m.diff)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s.patch does not apply any more, write it anew: %w\n%s", m.Name, err, out)
	}
	for original, changed := range replace {
		if same(original, changed) {
			return "", fmt.Errorf("%s.patch changes nothing in %s", m.Name, original)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o644)
}

func same(a, b string) bool {
	x, errX := os.ReadFile(a)
	y, errY := os.ReadFile(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
