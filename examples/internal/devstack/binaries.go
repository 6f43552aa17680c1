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

// version of Postgres that is fetched.
const version = embeddedpostgres.V18

// cacheDir is where the programs are kept from one run to the next. Root's own cache cannot be reached by the account
// that the server runs as, so root keeps them where everybody can read.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/effectonce", nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a place to keep Postgres: %w", err)
	}
	return filepath.Join(cache, "effectonce"), nil
}

// binaries returns the directory that has Postgres in bin, lib and share. The first time it fetches it, some 15 MB, and
// says so. Several processes may do that at once.
func binaries(ctx context.Context, say func(string)) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, fmt.Sprintf("postgres-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	if complete(home) {
		return home, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making a place to keep Postgres: %w", err)
	}
	sweep(cache)
	tmp, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return "", fmt.Errorf("making a place to fetch Postgres to: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	say(fmt.Sprintf("fetching Postgres %s (15 MB, once; kept in %s)", version, cache))
	if err := fetch(ctx, tmp); err != nil {
		return "", err
	}
	// Published by rename: a half-filled directory is never taken for the whole. Another process may have been faster.
	if err := os.Rename(filepath.Join(tmp, "postgres"), home); err != nil && !complete(home) {
		return "", fmt.Errorf("keeping Postgres: %w", err)
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

// sweep removes what fetches left that were killed.
func sweep(cache string) {
	old, _ := filepath.Glob(filepath.Join(cache, "fetch-*"))
	for _, dir := range old {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(dir)
		}
	}
}

// fetch brings Postgres into dir/postgres. The library can only fetch as the first step of a start, and a start of its
// own is of no use here: it refuses root, and detaches the server from this process. So it gets an encoding that does
// not exist, which ends it at its second step, initdb.
func fetch(ctx context.Context, dir string) error {
	port, err := child.FreePort() // it wants a free one before it begins
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
		// The download cannot be told to stop. While it only waits for the network it is left to the end of this
		// process; unpacking, which takes seconds, is waited for, or it would go on filling the directory that is about
		// to go.
		if archives, _ := filepath.Glob(filepath.Join(dir, "archive", "*.txz")); len(archives) > 0 {
			<-ended
		}
		return ctx.Err()
	}
	if err == nil {
		return errors.Join(errors.New("devstack: Postgres was started where it should only have been fetched"),
			library.Stop())
	}
	if !complete(home) {
		return fmt.Errorf("fetching Postgres %s: %w (without a network, name servers with --database-url and "+
			"--kafka-brokers)", version, err)
	}
	return readable(home)
}

// readable lets everybody read and run the programs, whatever the umask was.
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
