// Package draw provides what differs from run to run: the seeds of random tests, and the sizes of large ones.
package draw

import (
	"os"
	"strconv"
	"testing"
	"time"
)

const (
	envSeed    = "EFFECTONCE_TEST_SEED"
	envNightly = "EFFECTONCE_NIGHTLY" // "1": the nightly run
)

// Nightly reports whether there is time for more.
func Nightly() bool { return os.Getenv(envNightly) == "1" }

// Size returns the size of a test: that of the gate, or that of the nightly run.
func Size(gate, nightly int) int {
	if Nightly() {
		return nightly
	}
	return gate
}

// Seed returns the seed of a random test: EFFECTONCE_TEST_SEED, which the gate draws from the commit, or else another
// one each time. A failed test says how to repeat it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(envSeed); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s=%d draws the same again", envSeed, seed)
		}
	})
	return seed
}
