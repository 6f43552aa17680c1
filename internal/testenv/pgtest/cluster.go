package pgtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// initdbArgs are part of the template's name.
var initdbArgs = []string{"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"}

// program finds a Postgres program on PATH or in the newest /usr/lib/postgresql, which Debian does not have on PATH.
func program(name string) (string, error) {
	if version := os.Getenv(EnvVersion); version != "" {
		bin, err := download(version)
		if err != nil {
			return "", err
		}
		// Those that it lacks are the machine's, but never the server: systems remove old files of /tmp.
		if p := filepath.Join(bin, name); exists(p) || name == "postgres" || name == "initdb" {
			return p, nil
		}
	}
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	version := func(p string) int {
		n, _ := strconv.Atoi(strings.Split(p, "/")[4])
		return n
	}
	sort.Slice(found, func(i, j int) bool { return version(found[i]) < version(found[j]) })
	if len(found) == 0 {
		return "", fmt.Errorf("no %s on PATH or in /usr/lib/postgresql: install PostgreSQL, or set %s", name, envURL)
	}
	return found[len(found)-1], nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// newDataDir makes a cluster in dir/data. It copies a cached template, because initdb takes a second.
func newDataDir(dir string) error {
	account, err := child.Unprivileged()
	if err != nil {
		return err
	}
	initdb, err := program("initdb")
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	template, err := templatePath(initdb)
	if err == nil {
		if _, err := os.Stat(template); err == nil {
			return copyTree(template, data, account)
		}
	}
	cmd := exec.Command(initdb, append([]string{"-D", data}, initdbArgs...)...)
	cmd.Dir = dir
	account.Run(cmd)
	if err := account.Own(dir); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if template != "" {
		keepTemplate(data, template)
	}
	return nil
}

// templatePath names the template of this Postgres version and these options.
func templatePath(initdb string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	version, err := exec.Command(initdb, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", initdb, err)
	}
	sum := sha256.Sum256(append(bytes.TrimSpace(version), strings.Join(initdbArgs, " ")...))
	return filepath.Join(cache, "effectonce", "pg-"+hex.EncodeToString(sum[:6])), nil
}

// keepTemplate stores a copy atomically by rename. It ignores errors: a missing template only costs time.
func keepTemplate(data, template string) {
	if err := os.MkdirAll(filepath.Dir(template), 0o700); err != nil {
		return
	}
	tmp, err := os.MkdirTemp(filepath.Dir(template), "pg-new-")
	if err != nil {
		return
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := copyTree(data, filepath.Join(tmp, "data"), child.Account{}); err == nil {
		_ = os.Rename(filepath.Join(tmp, "data"), template)
	}
}

// copyTree copies a directory, follows symbolic links, and gives the copy to an account. It skips files that are
// deleted meanwhile, as those of a running server may be.
func copyTree(from, to string, owner child.Account) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		if d.Type()&fs.ModeSymlink != 0 { // such as pg_wal on another disk
			target, err := filepath.EvalSymlinks(path)
			if err != nil {
				return err
			}
			return copyTree(target, dst, owner)
		}
		if d.IsDir() {
			err = os.MkdirAll(dst, 0o700)
		} else {
			var b []byte
			if b, err = os.ReadFile(path); errors.Is(err, fs.ErrNotExist) {
				return nil
			} else if err == nil {
				err = os.WriteFile(dst, b, 0o600)
			}
		}
		if err == nil {
			err = owner.Own(dst)
		}
		return err
	})
}
