package dynamostore

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestClock_HoldsTheServersTime: whatever the way takes, there and back, however wrong the host's wall clock and
// (within the drift) its monotonic clock, and although Date has no fractions and the servers' clocks differ by the
// skew, the interval holds the true time.
func TestClock_HoldsTheServersTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const skew = 50 * time.Millisecond
		c := clock{skew: skew}
		truth := time.Unix(1_700_000_000, rapid.Int64Range(0, 999_999_999).Draw(t, "fraction"))
		host := time.Unix(rapid.Int64Range(0, 4_000_000_000).Draw(t, "host"), 0)
		rate := 1 + rapid.Float64Range(-drift*0.9, drift*0.9).Draw(t, "drift")
		pass := func(name string, most time.Duration) {
			d := time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, name))
			truth, host = truth.Add(d), host.Add(time.Duration(float64(d)*rate))
		}
		for range rapid.IntRange(1, 30).Draw(t, "calls") {
			sent := host
			pass("there", 300*time.Millisecond)
			date := truth.Add(time.Duration(rapid.Int64Range(-int64(skew), int64(skew)).Draw(t, "skew"))).Truncate(
				time.Second)
			pass("back", 300*time.Millisecond)
			c.learn(date, sent, host)
			pass("idle", 2*time.Second)
			low, top := c.on(host)
			if now := truth.UnixMicro(); low > now || now > top {
				t.Fatalf("%d is not between %d and %d", now, low, top)
			}
		}
	})
}

// TestClock_Narrows: under traffic the interval is as wide as a way there and back, not a second.
func TestClock_Narrows(t *testing.T) {
	t.Parallel()
	var c clock
	truth, host := time.Unix(1_700_000_000, 300_000_000), time.Unix(0, 0)
	for range 1000 {
		sent := host
		truth, host = truth.Add(2*time.Millisecond), host.Add(2*time.Millisecond)
		c.learn(truth.Truncate(time.Second), sent, host)
	}
	if low, top := c.on(host); top-low > 10_000 {
		t.Fatalf("%d µs wide", top-low)
	}
}

// TestClock_AServersClockIsSet: a Date that cannot be true if the others were widens the interval, so that no lease is
// judged by the one that is wrong.
func TestClock_AServersClockIsSet(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		var c clock
		truth, host := time.Unix(1_700_000_000, 0), time.Unix(0, 0)
		c.learn(truth, host, host)
		c.learn(truth.Add(jump), host, host)
		low, top := c.on(host)
		for _, server := range []time.Time{truth, truth.Add(jump)} {
			if now := server.UnixMicro(); low > now || now > top {
				t.Errorf("%d is not between %d and %d", now, low, top)
			}
		}
	}
}
