// Package pgtest gives tests a real Postgres: a throwaway server, and in it a schema or a database for each test.
//
// The server at EFFECTONCE_TEST_DATABASE_URL is used when that is set (as superuser); otherwise each test binary starts
// its own.
package pgtest

import (
	"os"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// EnvURL names the variable that holds the URL of a server to share between test binaries.
const EnvURL = "EFFECTONCE_TEST_DATABASE_URL"

// shared is this binary's server. A test binary has one, started by the first test that asks: hence state of the
// package.
var shared struct {
	sync.Mutex
	server *Server
}

// Main is for TestMain: it runs the tests, calls the stops (kafkatest.Stop, say), stops the server it started,
// fails the binary when a goroutine was left behind, and exits.
func Main(m *testing.M, stops ...func()) {
	child.Main(m, append(stops, Stop)...)
}

// Stop ends the server that this binary started, if it did. Main calls it.
func Stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.Close()
		shared.server = nil
	}
}

// AdminURL is the URL of the shared server as superuser; the first call starts that server.
func AdminURL(t testing.TB) string {
	t.Helper()
	url, err := Shared()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return url
}

// Shared is AdminURL for callers that are no test.
func Shared() (string, error) {
	if url := os.Getenv(EnvURL); url != "" {
		return url, nil
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := startServer(fast)
		if err != nil {
			return "", err
		}
		shared.server = s
	}
	return shared.server.URL(), nil
}
