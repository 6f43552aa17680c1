package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// TestInitCompiles: what is left of each kind compiles, with its tests, and is short. examples/internal/copies runs it.
func TestInitCompiles(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]initFlags{"http-x": {}, "sql-x": {SQL: true}, "worker-x": {Worker: true}} {
		dir := filepath.Join(t.TempDir(), name)
		if err := f.copy(dir); err != nil {
			t.Fatal(err)
		}
		var overlay struct{ Replace map[string]string } // of the service with all parts
		overlay.Replace = map[string]string{}
		for name := range partOf {
			overlay.Replace[filepath.Join("starter", name)] = ""
		}
		lines := 0
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), "starter") || marked.Match(text) {
				t.Errorf("%s has what was to be replaced:\n%s", path, text)
			}
			if strings.HasPrefix(filepath.Ext(path), ".y") && err == nil {
				err = yaml.Unmarshal(text, new(any))
			}
			overlay.Replace[filepath.Join("starter", e.Name())] = path
			if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
				lines += len(regexp.MustCompile(`(?m)^\s*[^\s/]`).FindAll(text, -1))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		skill, err := os.ReadFile(filepath.Join(dir, ".claude/skills/effectonce/SKILL.md"))
		if err != nil || !strings.HasPrefix(string(skill), "---\nname: effectonce\ndescription: ") {
			t.Errorf("%s has no skill: %v\n%s", name, err, skill)
		}
		if lines == 0 || lines > 150 {
			t.Errorf("%s: %d lines of Go that are no comments", name, lines)
		}
		text, err := json.Marshal(overlay)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "overlay.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "vet", "-overlay="+file, "./starter").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestInitRefuses: a folder that has something, two kinds, and no folder.
func TestInitRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"init", "starter"}, {"init", "--sql", "--http", "new"}, {"init"}} {
		if code := command(t.Context(), args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
	dir := filepath.Join(t.TempDir(), "my shop") // is no module's path
	if code := command(t.Context(), []string{"init", dir}, io.Discard, io.Discard); code == 0 {
		t.Error("no failure")
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder stays: %v", err)
	}
}
