package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

const version = embeddedpostgres.V18

// cacheDir is the directory of the programs. Under root it is readable for everybody, because the server runs as
// another account.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/effectonce", nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a directory for Postgres: %w", err)
	}
	return filepath.Join(cache, "effectonce"), nil
}

// binaries returns the directory with Postgres' bin, lib and share. The first time it downloads them, about 15 MB, and
// logs that. Several processes may do so concurrently.
func binaries(ctx context.Context, log func(string)) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	if complete(home) {
		return home, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("creating a directory for Postgres: %w", err)
	}
	sweep(cache)
	tmp, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return "", fmt.Errorf("creating a directory for the download of Postgres: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	log(fmt.Sprintf("downloading Postgres %s (15 MB, once, to %s)", version, cache))
	if err := fetch(ctx, tmp); err != nil {
		return "", err
	}
	// The rename is atomic: no process sees an incomplete directory. Another process may have been faster.
	if err := os.Rename(filepath.Join(tmp, "postgres"), home); err != nil && !complete(home) {
		return "", fmt.Errorf("storing Postgres: %w", err)
	}
	return home, nil
}

func complete(home string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(home, "bin", program+exe())); err != nil {
			return false
		}
	}
	return true
}

func exe() string {
	if runtime.GOOS == "windows" {
		return ".exe"
	}
	return ""
}

// sweep removes the remains of killed downloads.
func sweep(cache string) {
	old, _ := filepath.Glob(filepath.Join(cache, "fetch-*"))
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(dir)
		}
	}
}

// fetch downloads Postgres to dir/postgres. The library downloads only as the first step of a start, and its server is
// of no use here: it refuses root, and is detached from this process. An invalid encoding makes the start fail at the
// second step, initdb.
func fetch(ctx context.Context, dir string) error {
	port, err := child.FreePort() // the library checks it first
	if err != nil {
		return err
	}
	home := filepath.Join(dir, "postgres")
	library := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().Version(version).Port(uint32(port)).
		CachePath(filepath.Join(dir, "archive")).RuntimePath(filepath.Join(dir, "run")).DataPath(
		filepath.Join(dir, "data")).
		BinariesPath(home).Encoding("no-such-encoding").Logger(io.Discard))
	ended := make(chan error, 1)
	go func() { ended <- library.Start() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		// The library cannot be cancelled. A download goes on until this process ends. Unpacking takes seconds and is
		// awaited, because it writes to the directory that the caller removes.
		if archives, _ := filepath.Glob(filepath.Join(dir, "archive", "*.txz")); len(archives) > 0 {
			<-ended
		}
		return ctx.Err()
	}
	if err == nil {
		return errors.Join(errors.New("devstack: Postgres was started instead of only downloaded"),
			library.Stop())
	}
	if !complete(home) {
		return fmt.Errorf("downloading Postgres %s: %w (without a network, name servers with --database-url and "+
			"--kafka-brokers)", version, err)
	}
	return readable(home)
}

// readable makes the programs readable and executable for everybody, whatever the umask was.
func readable(home string) error {
	return filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
