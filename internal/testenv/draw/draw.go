// Package draw provides the seeds of random tests.
package draw

import (
	"os"
	"strconv"
	"testing"
	"time"
)

const envSeed = "EFFECTONCE_TEST_SEED"

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
