// Package kafkatest gives tests a real Kafka: one broker in KRaft mode as a child process, and topics in it.
//
// The brokers at EFFECTONCE_TEST_KAFKA_BROKERS are used when that is set; otherwise each test binary starts its own.
// With -short, or without Java or Maven, an in-process imitation (kfake) stands in, unless EFFECTONCE_REQUIRE_KAFKA=1.
package kafkatest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// The variables that steer the package.
const (
	EnvBrokers = "EFFECTONCE_TEST_KAFKA_BROKERS" // brokers to share, comma-separated
	EnvFake    = "EFFECTONCE_TEST_KAFKA_FAKE"    // "1": those brokers are the imitation
	EnvRequire = "EFFECTONCE_REQUIRE_KAFKA"      // "1": fail rather than imitate
)

// shared is this binary's broker, started by the first test that asks: a test binary has one, hence state of the
// package.
var shared struct {
	sync.Mutex
	brokers []string
	fake    bool
	stop    func()
}

// Main is for TestMain where no Postgres is used: it runs the tests, calls the stops, stops the broker it started,
// fails the binary when a goroutine was left behind, and exits. With Postgres: pgtest.Main(m, kafkatest.Stop).
func Main(m *testing.M, stops ...func()) {
	child.Main(m, append(stops, Stop)...)
}

// Stop ends the broker that this binary started, if it did. Main calls it.
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
	return brokers
}

// RequireReal skips a test that means nothing against the imitation.
func RequireReal(t testing.TB) {
	t.Helper()
	if quick() {
		t.Skip("needs a real Kafka, which -short does not start")
	}
	if os.Getenv(EnvBrokers) == "" {
		// A test with a cluster of its own needs no shared broker beside it.
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

var errShort = errors.New("-short starts none")

// quick: the imitation will do, unless somebody has started a real one.
func quick() bool { return testing.Testing() && testing.Short() && os.Getenv(EnvBrokers) == "" }

// Shared is Brokers for callers that are no test; fake tells that they are the imitation.
func Shared() (brokers []string, fake bool, err error) {
	if env := os.Getenv(EnvBrokers); env != "" {
		return strings.Split(env, ","), os.Getenv(EnvFake) == "1", nil
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.brokers != nil {
		return shared.brokers, shared.fake, nil
	}
	libs, err := Libs()
	if quick() {
		err = errShort
	}
	if err == nil {
		c, err := startCluster(libs, 1, func(n *node) error { n.lasting = true; return nil })
		if err != nil {
			return nil, false, err
		}
		shared.brokers, shared.fake, shared.stop = c.Brokers(), false, c.Close
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
