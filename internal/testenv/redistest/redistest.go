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

var shared child.Shared

// Stop stops the server if this binary started it, for child.Main(m, redistest.Stop).
func Stop() { shared.Stop() }

// Addr returns the address of the shared server. The first call starts it. Without redis-server it skips the test.
func Addr(t testing.TB) string {
	t.Helper()
	if addr := os.Getenv(EnvAddr); addr != "" {
		return addr
	}
	require(t)
	return shared.Get(t, func() (*child.Server, error) { return start() }).Addr()
}

// Prefix returns a unique prefix for keys.
func Prefix() string { return "test-" + rand.Text() }

// New starts a server with additional command line arguments, such as "--appendonly", "yes". The end of the test stops
// it.
func New(t testing.TB, settings ...string) *child.Server {
	t.Helper()
	require(t)
	s, err := start(settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
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

func start(settings ...string) (*child.Server, error) {
	return child.NewServer("redis", func(s *child.Server) (*child.Process, error) {
		args := append([]string{
			"--port", fmt.Sprint(s.Port), "--bind", "127.0.0.1", "--dir", s.Dir, "--save", "", "--appendonly", "no",
			"--maxmemory-policy", "noeviction", "--daemonize", "no", "--repl-diskless-sync-delay", "0",
		}, settings...)
		cmd := exec.Command("redis-server", args...)
		p, err := child.Start(cmd, filepath.Join(s.Dir, "server.log"), syscall.SIGKILL)
		if err != nil {
			return nil, err
		}
		return p, p.Await(time.Minute, func(ctx context.Context) error { return ping(ctx, s.Addr()) })
	})
}

// ping returns nil if the server answers. It does not use a client library, so that this module depends on none.
func ping(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
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
