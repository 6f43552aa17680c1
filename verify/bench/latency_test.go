package main

import (
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		of   []time.Duration
		p    float64
		want time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0.01, 7},
		{[]time.Duration{7}, 0.99, 7},
		{hundred, 0, 1},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 0.991, 100},
		{hundred, 1, 100},
	} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("percentile %v of %d values is %v, want %v", c.p, len(c.of), got, c.want)
		}
	}
}

// TestLatencies: a stall counts for every event that was due in it; the warm-up does not count.
func TestLatencies(t *testing.T) {
	t.Parallel()
	a := newArrivals(time.Now(), 4)
	for i, at := range []int64{999, 110, 112, 111} {
		a.at[i].Store(at)
	}
	got, last := a.latencies(func(i int) time.Duration { return time.Duration(10 * i) }, 1)
	if len(got) != 3 || got[0] != 81 || got[1] != 92 || got[2] != 100 || last != 112 {
		t.Errorf("got %v, the last at %d; want 81, 92, 100, and 112", got, last)
	}
}
