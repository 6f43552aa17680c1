// Package maven downloads jars from Maven Central for tests.
package maven

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

func pom(name string, coordinates []string) string {
	var b strings.Builder
	for _, c := range coordinates {
		p := strings.Split(c, ":")
		fmt.Fprintf(&b,
			"<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n",
			p[0], p[1], p[2])
	}
	return `<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>effectonce</groupId><artifactId>` + name + `</artifactId><version>1</version>
<dependencies>` + b.String() + `</dependencies></project>
`
}

// Jars returns the directory with the jars of coordinates (group:artifact:version) and of their dependencies. The first
// call downloads them with Maven to a cache directory; name, which should include the version, identifies it. Several
// processes may call it concurrently.
func Jars(name string, coordinates ...string) (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", errors.New("no java on PATH: install a Java 17 runtime (make test CORNER= takes a fake Kafka)")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "effectonce", name)
	libs := filepath.Join(home, "libs")
	if _, err := os.Stat(libs); err == nil {
		return libs, nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("no mvn on PATH to download the jars of %s: install Maven", name)
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", err
	}
	// The rename is atomic: no process sees an incomplete directory.
	tmp, err := os.MkdirTemp(home, "fetch-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), []byte(pom(name, coordinates)), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command(mvn, "-q", "-B", "-f", filepath.Join(tmp, "pom.xml"),
		"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies", "-DoutputDirectory="+
			filepath.Join(tmp, "libs"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mvn could not download %s: %w\n%s", name, err, out)
	}
	if err := os.Rename(filepath.Join(tmp, "libs"), libs); err != nil && !errors.Is(err, syscall.ENOTEMPTY) &&
		!errors.Is(err, os.ErrExist) {
		return "", err
	}
	return libs, nil
}
