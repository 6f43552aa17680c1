package relay

import (
	"testing"
	"time"
)

// TestP8DelayedProbe: what is due is not left for minutes because one look was held up for seconds.
func TestP8DelayedProbe(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: 0, time.Millisecond: 20 * time.Millisecond, 8 * time.Second: 15 * time.Second,
	} {
		if got := duePause(took, 15*time.Second); got != want {
			t.Errorf("after a look of %v the next one waits for %v, want %v", took, got, want)
		}
	}
}
