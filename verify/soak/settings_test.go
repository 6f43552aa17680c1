package soak

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The settings of a run.
const (
	envDuration = "EFFECTONCE_SOAK_DURATION" // of the faults; empty: none
	envSeed     = "EFFECTONCE_SOAK_SEED"     // default: random
	envFaults   = "EFFECTONCE_SOAK_FAULTS"   // kinds, comma-separated; default: all that are possible
	envBrokers  = "EFFECTONCE_SOAK_BROKERS"  // 1 or 3; default: 3 from three minutes on
	envRate     = "EFFECTONCE_SOAK_RATE"     // events per second of all producers together; default 1000
	envReport   = "EFFECTONCE_SOAK_REPORT"   // a file to which each run appends its report, a line of JSON
	// the workers' deduplication, id or watermark; default id, or random if the seed is
	envDedup = "EFFECTONCE_SOAK_DEDUP"
	envFeed  = "EFFECTONCE_SOAK_FEED" // the relays' feed, table or wal; default table
	envKeep  = "EFFECTONCE_SOAK_KEEP" // a directory that keeps histories and logs of a run with violations
)

type settings struct {
	duration time.Duration
	seed     uint64
	faults   []string // empty: all
	brokers  int
	rate     int
	dedup    string
	follow   bool // the relays read the WAL
}

func readSettings(t *testing.T) settings {
	t.Helper()
	s := settings{seed: rand.Uint64() >> 32, rate: 1000}
	var err error
	v := os.Getenv(envDuration)
	if s.duration, err = time.ParseDuration(v); err != nil || s.duration < 10*time.Second {
		t.Fatalf("%s=%s: want a duration of at least 10s (%v)", envDuration, v, err)
	}
	if v := os.Getenv(envSeed); v != "" {
		if s.seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("%s=%s: want a number", envSeed, v)
		}
	}
	if v := os.Getenv(envFaults); v != "" {
		s.faults = strings.Split(v, ",")
	}
	s.brokers = 1
	if s.duration >= 3*time.Minute {
		s.brokers = 3
	}
	s.brokers = number(t, envBrokers, s.brokers)
	s.rate = number(t, envRate, s.rate)
	otherwise := "id"
	if os.Getenv(envSeed) == "" && s.seed%2 == 1 {
		otherwise = "watermark"
	}
	if s.dedup = cmp.Or(os.Getenv(envDedup), otherwise); s.dedup != "id" && s.dedup != "watermark" {
		t.Fatalf("%s=%s: want id or watermark", envDedup, s.dedup)
	}
	switch v := cmp.Or(os.Getenv(envFeed), "table"); v {
	case "table":
	case "wal":
		s.follow = true
	default:
		t.Fatalf("%s=%s: want table or wal", envFeed, v)
	}
	return s
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: want a number of at least 1", name, v)
	}
	return n
}

// rng returns a generator for one purpose, independent of those for others.
func (s settings) rng(purpose string) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, purpose)
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}
