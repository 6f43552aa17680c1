package dynamostore

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestClock_Interval: the interval contains the true time, with any network delay, wall clock, drift within maxDrift,
// and skew between servers.
func TestClock_Interval(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const skew = 50 * time.Millisecond
		c := clock{skew: skew}
		truth := time.Unix(1_700_000_000, rapid.Int64Range(0, 999_999_999).Draw(t, "fraction"))
		host := time.Unix(rapid.Int64Range(0, 4_000_000_000).Draw(t, "host"), 0)
		rate := 1 + rapid.Float64Range(-maxDrift*0.9, maxDrift*0.9).Draw(t, "drift")
		advance := func(name string, most time.Duration) {
			d := time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, name))
			truth, host = truth.Add(d), host.Add(time.Duration(float64(d)*rate))
		}
		for range rapid.IntRange(1, 30).Draw(t, "calls") {
			sent := host
			advance("there", 300*time.Millisecond)
			date := truth.Add(time.Duration(rapid.Int64Range(-int64(skew), int64(skew)).Draw(t, "skew"))).Truncate(
				time.Second)
			advance("back", 300*time.Millisecond)
			c.observe(date, sent, host)
			advance("idle", 2*time.Second)
			earliest, latest := c.at(host)
			if now := truth.UnixMicro(); earliest > now || now > latest {
				t.Fatalf("%d is not between %d and %d", now, earliest, latest)
			}
		}
	})
}

// TestClock_Narrows: with traffic the interval is as wide as a round trip, not a second.
func TestClock_Narrows(t *testing.T) {
	t.Parallel()
	var c clock
	truth, host := time.Unix(1_700_000_000, 300_000_000), time.Unix(0, 0)
	for range 1000 {
		sent := host
		truth, host = truth.Add(2*time.Millisecond), host.Add(2*time.Millisecond)
		c.observe(truth.Truncate(time.Second), sent, host)
	}
	if earliest, latest := c.at(host); latest-earliest > 10_000 {
		t.Fatalf("%d µs wide", latest-earliest)
	}
}

// TestClock_ServerClockJumps: a Date outside the interval widens it to contain both.
func TestClock_ServerClockJumps(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		var c clock
		truth, host := time.Unix(1_700_000_000, 0), time.Unix(0, 0)
		c.observe(truth, host, host)
		c.observe(truth.Add(jump), host, host)
		earliest, latest := c.at(host)
		for _, server := range []time.Time{truth, truth.Add(jump)} {
			if now := server.UnixMicro(); earliest > now || now > latest {
				t.Errorf("%d is not between %d and %d", now, earliest, latest)
			}
		}
	}
}
