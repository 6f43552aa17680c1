package kafkatest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// version of Kafka that the tests run against.
const version = "4.1.0"

const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>effectonce</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + version +
	`</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>` + version +
	`</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
`

// Libs returns the directory with Kafka's jars, fetched with Maven the first time. Several processes may call it at
// once.
func Libs() (string, error) { return Jars("kafka-"+version, pom) }

// Jars returns the directory with the jars that a POM depends on, fetched with Maven the first time; name, with its
// version, is where they stay in the cache. Several processes may call it at once.
func Jars(name, pom string) (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", errors.New("no java on PATH: install a Java 17 runtime")
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
		return "", fmt.Errorf("no mvn on PATH to fetch the jars of %s with: install Maven", name)
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", err
	}
	// A directory of one's own, published by rename: a half-filled one is never taken for the whole.
	tmp, err := os.MkdirTemp(home, "fetch-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), []byte(pom), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command(mvn, "-q", "-B", "-f", filepath.Join(tmp, "pom.xml"),
		"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies", "-DoutputDirectory="+
			filepath.Join(tmp, "libs"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mvn could not fetch %s: %w\n%s", name, err, out)
	}
	if err := os.Rename(filepath.Join(tmp, "libs"), libs); err != nil && !errors.Is(err, syscall.ENOTEMPTY) &&
		!errors.Is(err, os.ErrExist) {
		return "", err
	}
	return libs, nil
}
