package prober

import (
	"testing"
	"time"
)

// TestP8DelayedProbe: a probe that took seconds does not postpone due events by minutes.
func TestP8DelayedProbe(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: 0, time.Millisecond: 20 * time.Millisecond, 8 * time.Second: 15 * time.Second,
	} {
		if got := duePause(took, 15*time.Second); got != want {
			t.Errorf("after a probe of %v the next one waits for %v, want %v", took, got, want)
		}
	}
}
