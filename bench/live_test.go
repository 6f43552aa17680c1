package main

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/relay"
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
	due := []time.Duration{0, 10, 20, 30}
	got := latencies(due, []time.Duration{999, 110, 110, 110}, 1)
	if len(got) != 3 || got[0] != 80 || got[1] != 90 || got[2] != 100 {
		t.Errorf("got %v, want 80, 90, 100", got)
	}
}

// TestLastPublished: only lanes with a new owner after the signal count, and each must have published an event.
func TestLastPublished(t *testing.T) {
	t.Parallel()
	at := time.Now()
	lanes := make([]laneTurn, relay.Lanes)
	for i := range lanes {
		lanes[i] = laneTurn{Taken: at.Add(-time.Hour), Published: at.Add(-time.Minute)}
		if i%2 == 0 {
			lanes[i] = laneTurn{
				Taken:     at.Add(time.Second),
				Published: at.Add(time.Second + time.Duration(i)*time.Millisecond),
			}
		}
	}
	if took, err := lastPublished(lanes, at); err != nil || took != 1030*time.Millisecond {
		t.Errorf("took %v, %v", took, err)
	}
	lanes[4].Published = time.Time{}
	if took, err := lastPublished(lanes, at); err == nil {
		t.Errorf("a lane that nothing was published from passes: %v", took)
	}
	if took, err := lastPublished(lanes, at.Add(time.Hour)); err == nil {
		t.Errorf("no lane changed hands, and it took %v", took)
	}
}
