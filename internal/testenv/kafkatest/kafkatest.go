// Package kafkatest provides a real Kafka for tests: a broker in KRaft mode as a child process, and topics in it.
//
// EFFECTONCE_TEST_KAFKA_BROKERS names existing brokers to use; otherwise each test binary starts its own. With -short,
// or without Java or Maven, an in-process imitation (kfake) replaces it, unless EFFECTONCE_REQUIRE_KAFKA=1. A failed
// test ends with what its brokers logged meanwhile.
package kafkatest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Environment variables of the package.
const (
	envBrokers = "EFFECTONCE_TEST_KAFKA_BROKERS" // brokers to share, comma-separated
	envFake    = "EFFECTONCE_TEST_KAFKA_FAKE"    // "1": these brokers are the imitation
	envLog     = "EFFECTONCE_TEST_KAFKA_LOG"     // the path of their log; may be missing
	EnvRequire = "EFFECTONCE_REQUIRE_KAFKA"      // "1": fail instead of using the imitation
)

// shared is this binary's broker. The first test that needs it starts it.
var shared struct {
	sync.Mutex
	brokers []string
	fake    bool
	log     string // its path
	stop    func()
}

// Main is for TestMain without Postgres; with Postgres use pgtest.Main(m, kafkatest.Stop). It runs the tests, calls
// stops, stops the broker, fails if a goroutine has leaked, and exits.
func Main(m *testing.M, stops ...func()) {
	child.Main(m, append(stops, Stop)...)
}

// Stop stops the broker if this binary started it. Main calls it.
func Stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.stop != nil {
		shared.stop()
		shared.stop, shared.brokers = nil, nil
	}
}

// Brokers returns the addresses of the shared broker; the first call starts it.
func Brokers(t testing.TB) []string {
	t.Helper()
	brokers, _, err := Shared()
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	child.ShowLog(t, "Kafka", cmp.Or(os.Getenv(envLog), shared.log))
	return brokers
}

// Environ starts the shared broker, and returns the variables that make test binaries use it.
func Environ() ([]string, error) {
	brokers, fake, err := start(false)
	log := cmp.Or(os.Getenv(envLog), shared.log)
	vars := []string{envBrokers + "=" + strings.Join(brokers, ","), envLog + "=" + log}
	if fake {
		vars = append(vars, envFake+"=1")
	}
	return vars, err
}

// RequireReal skips the test if there is no real Kafka.
func RequireReal(t testing.TB) {
	t.Helper()
	if preferFake() {
		t.Skip("needs a real Kafka, which -short does not start")
	}
	if os.Getenv(envBrokers) == "" {
		// Do not start the shared broker: the test may use its own cluster.
		if _, err := Libs(); err == nil {
			return
		}
	}
	_, fake, err := Shared()
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	if fake {
		t.Skip("needs a real Kafka: install Java 17 and Maven")
	}
}

var errShort = errors.New("-short starts no Kafka")

// preferFake reports whether to use the imitation: with -short, unless there are brokers to share.
func preferFake() bool { return testing.Testing() && testing.Short() && os.Getenv(envBrokers) == "" }

// Shared is Brokers for callers without a testing.TB. fake says that they are the imitation.
func Shared() (brokers []string, fake bool, err error) { return start(!testing.Testing()) }

func start(optimized bool) (brokers []string, fake bool, err error) {
	if env := os.Getenv(envBrokers); env != "" {
		return strings.Split(env, ","), os.Getenv(envFake) == "1", nil
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.brokers != nil {
		return shared.brokers, shared.fake, nil
	}
	libs, err := Libs()
	if preferFake() {
		err = errShort
	}
	if err == nil {
		c, err := startCluster(libs, 1, func(n *node) error {
			n.shared, n.optimized = true, optimized
			return nil
		})
		if err != nil {
			return nil, false, err
		}
		shared.brokers, shared.fake, shared.log, shared.stop = c.Brokers(), false, c.nodes[0].log(), c.Close
		return shared.brokers, false, nil
	}
	if os.Getenv(EnvRequire) == "1" {
		return nil, false, fmt.Errorf("%s=1 and there is no Kafka: %w", EnvRequire, err)
	}
	brokers, stop, fakeErr := startFake()
	if fakeErr != nil {
		return nil, true, fmt.Errorf("no Kafka: %w; and no imitation: %w", err, fakeErr)
	}
	if !errors.Is(err, errShort) {
		fmt.Fprintf(os.Stderr, "kafkatest: using an imitation of Kafka, not the real one: %v\n", err)
	}
	shared.brokers, shared.fake, shared.stop = brokers, true, stop
	return brokers, true, nil
}
