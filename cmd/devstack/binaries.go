package devstack

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/xi2/xz"
)

const (
	version = "18.3.0"
	central = "https://repo1.maven.org/maven2"
)

// cacheDir is the directory of the programs. Under root it is readable for all users, because the server runs as
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
	fetched := filepath.Join(tmp, "postgres")
	if err := fetch(ctx, central, fetched); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("downloading Postgres %s: %w (without a network, name servers with --database-url and "+
			"--kafka-brokers)", version, err)
	}
	// The rename is atomic: no process sees an incomplete directory. Another process may have been faster.
	if err := os.Rename(fetched, home); err != nil && !complete(home) {
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

// fetch downloads Postgres from a Maven repository, checks it, and unpacks it to dir. It writes to no other place.
func fetch(ctx context.Context, repository, dir string) error {
	artifact := "embedded-postgres-binaries-" + platform()
	url := fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%[2]s-%[3]s.jar", repository, artifact, version)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport}
	jar, err := get(ctx, client, url)
	if err != nil {
		return err
	}
	want, err := get(ctx, client, url+".sha256")
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(jar); hex.EncodeToString(sum[:]) != string(bytes.TrimSpace(want)) {
		return fmt.Errorf("%s is not what its checksum says", url)
	}
	if err := unpack(ctx, jar, dir); err != nil {
		return fmt.Errorf("unpacking %s: %w", url, err)
	}
	if !complete(dir) {
		return fmt.Errorf("%s lacks programs", url)
	}
	return readable(dir)
}

// platform names the operating system and the processor as the archives do.
func platform() string {
	arch := map[string]string{"arm64": "arm64v8", "arm": "arm32v7"}[runtime.GOARCH]
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		return runtime.GOOS + "-" + cmp.Or(arch, runtime.GOARCH) + "-alpine"
	}
	return runtime.GOOS + "-" + cmp.Or(arch, runtime.GOARCH)
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, res.Status)
	}
	return io.ReadAll(res.Body)
}

// unpack extracts the archive in a jar, a tar of xz, to a new directory.
func unpack(ctx context.Context, jar []byte, dir string) error {
	z, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(z.File, func(f *zip.File) bool { return strings.HasSuffix(f.Name, ".txz") })
	if i < 0 {
		return errors.New("it has no .txz")
	}
	packed, err := z.File[i].Open()
	if err != nil {
		return err
	}
	defer func() { _ = packed.Close() }()
	archive, err := xz.NewReader(packed, 0)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for t := tar.NewReader(archive); ; {
		switch h, err := t.Next(); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			if err := extract(root, h, t); err != nil {
				return err
			}
		}
	}
}

// extract writes one entry of an archive. Names that lead out of root are refused.
func extract(root *os.Root, h *tar.Header, content io.Reader) error {
	name := filepath.Clean(filepath.FromSlash(h.Name))
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode().Perm())
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	}
	return fmt.Errorf("%s is of an unknown kind", h.Name)
}

// readable makes the programs readable and executable for all users, whatever the umask was.
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
