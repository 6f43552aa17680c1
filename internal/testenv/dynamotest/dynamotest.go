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
	"sync"
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

// shared is this binary's server. The first test that needs it starts it.
var shared struct {
	sync.Mutex
	server *Server
}

// Stop stops the server if this binary started it, for child.Main(m, dynamotest.Stop).
func Stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.close()
		shared.server = nil
	}
}

// URL returns the URL of the shared server. The first call starts it.
func URL(t testing.TB) string {
	t.Helper()
	if url := os.Getenv(EnvURL); url != "" {
		return url
	}
	libs := require(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := start(libs, false)
		if err != nil {
			t.Fatalf("dynamotest: %v", err)
		}
		shared.server = s
	}
	return shared.server.URL()
}

// Server is a DynamoDB Local.
type Server struct {
	port    int
	dir     string
	libs    string
	remove  func()
	durable bool           // stores its tables in files
	process *child.Process // nil while stopped
}

// New starts a server that stores its tables in files. The end of the test stops it.
func New(t testing.TB) *Server {
	t.Helper()
	s, err := start(require(t), true)
	if err != nil {
		t.Fatalf("dynamotest: %v", err)
	}
	t.Cleanup(s.close)
	return s
}

// URL is the server's URL. Restarts keep it.
func (s *Server) URL() string { return "http://" + s.Addr() }

// Addr is the host:port of URL.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Kill sends SIGKILL.
func (s *Server) Kill() {
	if s.process != nil {
		s.process.Stop(syscall.SIGKILL, 10*time.Second)
		s.process = nil
	}
}

// Start starts a killed server again with its files.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.run(); err != nil {
		t.Fatalf("dynamotest: %v", err)
	}
}

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

func start(libs string, durable bool) (*Server, error) {
	dir, remove, err := child.TempDir("dynamodb")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, remove: remove, libs: libs, durable: durable}
	err = child.OnFreePort(func(port int) error {
		s.port = port
		return s.run()
	})
	if err != nil {
		remove()
		return nil, err
	}
	return s, nil
}

func (s *Server) run() error {
	cmd := exec.Command("java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-XX:+UseSerialGC", "-Xshare:auto",
		"-Djava.library.path="+s.libs, "-Djava.io.tmpdir="+s.dir, "-cp", filepath.Join(s.libs, "*"),
		"com.amazonaws.services.dynamodbv2.local.main.ServerRunner", "-port", fmt.Sprint(s.port), "-disableTelemetry",
		"-sharedDb")
	if s.durable {
		cmd.Args = append(cmd.Args, "-dbPath", s.dir)
	} else {
		cmd.Args = append(cmd.Args, "-inMemory")
	}
	cmd.Dir = s.dir
	p, err := child.Start(cmd, filepath.Join(s.dir, "server.log"), syscall.SIGKILL)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	err = p.Await(2*time.Minute, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL(), nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req) // any answer will do
		if err != nil {
			return err
		}
		return res.Body.Close()
	})
	if err != nil {
		return fmt.Errorf("start DynamoDB Local: %w", err)
	}
	s.process = p
	return nil
}

func (s *Server) close() {
	s.Kill()
	s.remove()
}
