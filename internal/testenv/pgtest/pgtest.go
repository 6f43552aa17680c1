// Package pgtest provides a real Postgres for tests: a temporary server, and in it a schema or a database for each
// test. EFFECTONCE_TEST_DATABASE_URL names an existing server to use, as superuser; otherwise each test binary starts
// its own.
package pgtest

import (
	"os"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// EnvURL is the variable for the URL of a server that test binaries share.
const EnvURL = "EFFECTONCE_TEST_DATABASE_URL"

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
	url, err := Shared()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return url
}

// Shared is AdminURL for callers without a testing.TB.
func Shared() (string, error) {
	if url := os.Getenv(EnvURL); url != "" {
		return url, nil
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := startServer(append(fast, "max_connections=1000")) // many test binaries may share it
		if err != nil {
			return "", err
		}
		shared.server = s
	}
	return shared.server.URL(), nil
}
