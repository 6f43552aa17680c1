package pgtest

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/effectonce/effectonce/internal/testenv/maven"
)

// EnvVersion is the variable for a version of Postgres to test with, such as 18.3.0, from io.zonky.test.postgres at
// Maven Central. It has postgres and initdb; other programs are the machine's. Default: the machine's Postgres.
const EnvVersion = "EFFECTONCE_TEST_POSTGRES_VERSION"

// Programs returns the directory with Postgres' programs. The first call downloads them if EnvVersion is set.
func Programs() (string, error) {
	postgres, err := program("postgres")
	return filepath.Dir(postgres), err
}

// download returns the directory with the programs of a version. Several processes may call it concurrently.
func download(version string) (string, error) {
	artifact := "embedded-postgres-binaries-" + runtime.GOOS + "-" + runtime.GOARCH
	libs, err := maven.Jars("postgres-"+version, "io.zonky.test.postgres:"+artifact+":"+version)
	if err != nil {
		return "", err
	}
	// Not in root's cache, which the account of the server cannot read.
	home := filepath.Join(os.TempDir(), "effectonce-postgres-"+version)
	bin := filepath.Join(home, "bin")
	if exists(bin) {
		return bin, nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(home), "effectonce-fetch-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := unpack(filepath.Join(libs, artifact+"-"+version+".jar"), tmp); err != nil {
		return "", fmt.Errorf("unpack Postgres %s: %w", version, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	// Another process may have been faster.
	if err := os.Rename(tmp, home); err != nil && !exists(bin) {
		return "", err
	}
	return bin, nil
}

// unpack extracts the .txz archive in a jar to a directory.
func unpack(jar, dir string) error {
	z, err := zip.OpenReader(jar)
	if err != nil {
		return err
	}
	defer func() { _ = z.Close() }()
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".txz") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		cmd := exec.Command("tar", "-xJf", "-", "-C", dir)
		cmd.Stdin = r
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("tar: %w: %s", err, out)
		}
		_, err = io.Copy(io.Discard, r)
		return err
	}
	return fmt.Errorf("%s has no .txz", jar)
}
