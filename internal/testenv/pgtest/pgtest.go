// Package pgtest provides a real Postgres for tests: a temporary server, and in it a database for each test.
// EFFECTONCE_TEST_DATABASE_URL names an existing server to use, as superuser; otherwise each test binary starts one. On
// an existing one the databases effectonce_template_* stay, one for each state of the migrations. A failed test ends
// with what the server logged meanwhile.
package pgtest

import (
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Environment variables of a server that test binaries share.
const (
	envURL = "EFFECTONCE_TEST_DATABASE_URL"
	envLog = "EFFECTONCE_TEST_DATABASE_LOG" // the path of its log; may be missing
)

// shared is this binary's server. The first test that needs it starts it.
var shared struct {
	sync.Mutex
	server *Server
}

// Main is for TestMain. It runs the tests, calls stops (such as kafkatest.Stop), stops the server, fails if a goroutine
// has leaked, and exits.
func Main(m *testing.M, stops ...func()) {
	child.Main(m, append(stops, Stop)...)
}

// Stop stops the server if this binary started it. Main calls it.
func Stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.Close()
		shared.server = nil
	}
}

// AdminURL returns the superuser's URL of the shared server. The first call starts it.
func AdminURL(t testing.TB) string {
	t.Helper()
	url, log, err := start()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	child.ShowLog(t, "Postgres", log)
	return url
}

// Environ starts the shared server, and returns the variables that make test binaries use it.
func Environ() ([]string, error) {
	url, log, err := start()
	return []string{envURL + "=" + url, envLog + "=" + log}, err
}

func start() (url, log string, err error) {
	if url := os.Getenv(envURL); url != "" {
		return url, os.Getenv(envLog), nil
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		// Many binaries may share it.
		s, err := startServer(child.MemoryDir, slices.Concat(fast, []string{"max_connections=1000"}))
		if err != nil {
			return "", "", err
		}
		shared.server = s
	}
	return shared.server.URL(), shared.server.log(), nil
}
