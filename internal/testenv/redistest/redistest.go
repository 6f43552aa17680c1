// Package redistest provides a real Redis for tests: redis-server as a child process, by default without persistence.
//
// EFFECTONCE_TEST_REDIS_ADDR names an existing server to use; otherwise each test binary starts its own. Without
// redis-server the tests that need it are skipped, unless EFFECTONCE_REQUIRE_REDIS=1.
package redistest

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Environment variables of the package.
const (
	EnvAddr    = "EFFECTONCE_TEST_REDIS_ADDR" // host:port of a server to share; its keys are never flushed
	EnvRequire = "EFFECTONCE_REQUIRE_REDIS"   // "1": fail instead of skipping
)

// shared is this binary's server. The first test that needs it starts it.
var shared struct {
	sync.Mutex
	server *Server
}

// Stop stops the server if this binary started it, for child.Main(m, redistest.Stop).
func Stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.close()
		shared.server = nil
	}
}

// Addr returns the address of the shared server. The first call starts it. Without redis-server it skips the test.
func Addr(t testing.TB) string {
	t.Helper()
	if addr := os.Getenv(EnvAddr); addr != "" {
		return addr
	}
	require(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := start()
		if err != nil {
			t.Fatalf("redistest: %v", err)
		}
		shared.server = s
	}
	return shared.server.Addr()
}

// Prefix returns a unique prefix for keys.
func Prefix() string { return "test-" + rand.Text() }

// Server is the redis-server of one test.
type Server struct {
	port     int
	dir      string
	remove   func()
	settings []string
	process  *child.Process // nil while stopped
}

// New starts a server with additional command line arguments, such as "--appendonly", "yes". The end of the test stops
// it.
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	require(t)
	s, err := start(settings...)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(s.close)
	return s
}

// Addr is the server's host:port, the same after a restart.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Dir is the server's directory.
func (s *Server) Dir() string { return s.dir }

// Port is the port of Addr.
func (s *Server) Port() int { return s.port }

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
		t.Fatalf("redistest: %v", err)
	}
}

// Signal sends a signal to the process, such as SIGSTOP or SIGCONT.
func (s *Server) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := s.process.Signal(sig); err != nil {
		t.Fatalf("redistest: %v", err)
	}
}

func require(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv(EnvRequire) == "1" {
			t.Fatalf("%s=1 and there is no Redis: %v", EnvRequire, err)
		}
		t.Skip("needs redis-server on PATH: install the package redis-server")
	}
}

func start(settings ...string) (*Server, error) {
	dir, remove, err := child.TempDir("redis")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, remove: remove, settings: settings}
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
	args := append([]string{
		"--port", fmt.Sprint(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no",
		"--maxmemory-policy", "noeviction", "--daemonize", "no", "--repl-diskless-sync-delay", "0",
	}, s.settings...)
	p, err := child.Start(exec.Command("redis-server", args...), filepath.Join(s.dir, "server.log"), syscall.SIGKILL)
	if err != nil {
		return err
	}
	if err := p.Await(time.Minute, s.ping); err != nil {
		return fmt.Errorf("start redis-server: %w", err)
	}
	s.process = p
	return nil
}

func (s *Server) close() {
	s.Kill()
	s.remove()
}

// ping returns nil if the server answers. It does not use a client library, so that this module depends on none.
func (s *Server) ping(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && answer != "+PONG\r\n" {
		err = fmt.Errorf("redis-server answered %q", answer)
	}
	return err
}
