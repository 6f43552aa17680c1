package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/docs"
)

// files are those of a service with all parts, which is also a program of this module.
//
//go:embed all:starter
var files embed.FS

type initFlags struct {
	Dir    string `arg:"" help:"Folder, which is made. Its name is that of the module."`
	HTTP   bool   `name:"http" line:"" xor:"kind" help:"POST /payments with an Idempotency-Key, and the ledger. This is the default."`
	SQL    bool   `name:"sql" line:"" xor:"kind" help:"The producer is a function in SQL, for any language; the ledger is in Go."`
	Worker bool   `line:"" xor:"kind" help:"The ledger only."`
}

// parts are what the service has: files, and lines that end in a comment with the name of the part.
func (f initFlags) parts() []string {
	switch {
	case f.Worker:
		return []string{"worker"}
	case f.SQL:
		return []string{"producer", "sql"}
	}
	return []string{"producer", "http"}
}

// partOf are the files that belong to a part. None: it stays here.
var partOf = map[string]string{
	"payment.go": "http", "payment_test.go": "http", "pay_test.go": "sql", "tree_test.go": "none",
}

// renamed are files that would mean something in this repository.
var renamed = map[string]string{"README": "README.md", "gitignore": ".gitignore"}

var marked = regexp.MustCompile(`(?m)^(.*?) *(?://|--|#) (producer|http|sql|worker)\n`)

// write makes the folder with the service.
func (f initFlags) write(ctx context.Context, stdout io.Writer) error {
	dir, err := filepath.Abs(f.Dir)
	if err != nil {
		return err
	}
	if there, err := os.ReadDir(dir); len(there) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return service.Usage("%s is not a new folder", dir)
	}
	err = f.copy(dir)
	if err == nil {
		err = module(ctx, dir)
	}
	if err != nil { // the next try finds a new folder again
		return errors.Join(err, os.RemoveAll(dir))
	}
	fmt.Fprintf(stdout, "%s is a service; its README.md says how to run and to test it\n", dir)
	return nil
}

func (f initFlags) copy(dir string) error {
	skill := filepath.Join(dir, ".claude", "skills", "effectonce")
	if err := os.MkdirAll(skill, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(skill, "SKILL.md"), docs.Assistants, 0o644); err != nil {
		return err
	}
	parts := f.parts()
	return fs.WalkDir(files, "starter", func(path string, e fs.DirEntry, err error) error {
		if part, some := partOf[e.Name()]; err != nil || e.IsDir() || some && !slices.Contains(parts, part) {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		kept := marked.ReplaceAllStringFunc(string(text), func(line string) string {
			m := marked.FindStringSubmatch(line)
			if !slices.Contains(parts, m[2]) {
				return ""
			}
			return m[1] + "\n"
		})
		kept = strings.ReplaceAll(kept, "starter", filepath.Base(dir))
		to := filepath.Join(dir, filepath.FromSlash(strings.TrimPrefix(path, "starter/")))
		if name := renamed[e.Name()]; name != "" {
			to = filepath.Join(filepath.Dir(to), name)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, []byte(kept), 0o644)
	})
}

const path = "github.com/effectonce/effectonce"

// module makes the folder a module, which requires the release that this program is of; or, without one, replaces ours
// by a checkout.
func module(ctx context.Context, dir string) error {
	run := func(dir string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = dir
		if dir != "" {
			cmd.Env = append(os.Environ(), "GOWORK=off")
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out)), err
	}
	version, checkout := release(), ""
	if version == "" {
		var err error
		if checkout, err = run("", "list", "-m", "-f", "{{.Dir}}", path); err != nil {
			return service.Usage("this program is of no release: run it in a checkout of the project: %w", err)
		}
		version = "v0.0.0"
	}
	edit := []string{"mod", "edit"}
	for _, below := range []string{"", "/idempotency", "/metrics"} {
		edit = append(edit, "-require="+path+below+"@"+version)
		if checkout != "" {
			edit = append(edit, "-replace="+path+below+"="+checkout+below)
		}
	}
	for _, args := range [][]string{{"mod", "init", filepath.Base(dir)}, edit, {"mod", "tidy"}} {
		if _, err := run(dir, args...); err != nil {
			return err
		}
	}
	return nil
}

// release returns the version of our modules in this program; "": it was built from a checkout.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path && m.Replace == nil && m.Sum != "" {
				return m.Version
			}
		}
	}
	return ""
}
