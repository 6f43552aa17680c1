// Package dynamotest provides DynamoDB Local, Amazon's own implementation of the API, for tests, as a child process.
//
// EFFECTONCE_TEST_DYNAMODB_URL names an existing server to use; otherwise each test binary starts its own. Without Java
// or Maven the tests that need it are skipped, unless EFFECTONCE_REQUIRE_DYNAMODB=1.
package dynamotest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/maven"
)

// Environment variables of the package.
const (
	EnvURL     = "EFFECTONCE_TEST_DYNAMODB_URL" // http://host:port of a server to share
	EnvRequire = "EFFECTONCE_REQUIRE_DYNAMODB"  // "1": fail instead of skipping
)

const version = "2.6.0"

// Libs returns the directory with the server's jars and native library. The first call downloads them with Maven.
func Libs() (string, error) {
	return maven.Jars("dynamodb-"+version, "com.amazonaws:DynamoDBLocal:"+version)
}

var shared child.Shared

// Stop stops the server if this binary started it, for child.Main(m, dynamotest.Stop).
func Stop() { shared.Stop() }

// URL returns the URL of the shared server. The first call starts it.
func URL(t testing.TB) string {
	t.Helper()
	if url := os.Getenv(EnvURL); url != "" {
		return url
	}
	libs := require(t)
	return urlOf(shared.Get(t, func() (*child.Server, error) { return start(libs, false) }))
}

// Server is a DynamoDB Local.
type Server struct{ *child.Server }

// New starts a server that stores its tables in files. The end of the test stops it.
func New(t testing.TB) *Server {
	t.Helper()
	s, err := start(require(t), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &Server{s}
}

// URL is the server's URL. Restarts keep it.
func (s *Server) URL() string { return urlOf(s.Server) }

func urlOf(s *child.Server) string { return "http://" + s.Addr() }

func require(t testing.TB) string {
	t.Helper()
	libs, err := Libs()
	if err != nil {
		if os.Getenv(EnvRequire) == "1" {
			t.Fatalf("%s=1 and there is no DynamoDB Local: %v", EnvRequire, err)
		}
		t.Skipf("needs DynamoDB Local: %v", err)
	}
	return libs
}

func start(libs string, durable bool) (*child.Server, error) {
	return child.NewServer("dynamodb", func(s *child.Server) (*child.Process, error) {
		cmd := exec.Command("java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-XX:+UseSerialGC", "-Xshare:auto",
			"-Djava.library.path="+libs, "-Djava.io.tmpdir="+s.Dir, "-cp", filepath.Join(libs, "*"),
			"com.amazonaws.services.dynamodbv2.local.main.ServerRunner", "-port", fmt.Sprint(s.Port),
			"-disableTelemetry", "-sharedDb")
		if durable {
			cmd.Args = append(cmd.Args, "-dbPath", s.Dir)
		} else {
			cmd.Args = append(cmd.Args, "-inMemory")
		}
		cmd.Dir = s.Dir
		p, err := child.Start(cmd, filepath.Join(s.Dir, "server.log"), syscall.SIGKILL)
		if err != nil {
			return nil, err
		}
		return p, p.Await(2*time.Minute, func(ctx context.Context) error { return ping(ctx, urlOf(s)) })
	})
}

// ping returns nil if the server gives any answer.
func ping(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
