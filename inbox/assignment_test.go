package inbox

import "testing"

// TestP9_10_PartsLoseTogether: parts that lose conflicts with each other delay larger transactions as one would.
func TestP9_10_PartsLoseTogether(t *testing.T) {
	t.Parallel()
	var one, eight assignment
	one.narrow(2)
	for range 8 {
		eight.narrow(2)
	}
	for n := 1; one.width() == 1; n++ {
		one.widen(8)
		if eight.widen(8); eight.width() != one.width() {
			t.Fatalf("after %d transactions without a conflict %d events, want %d", n, eight.width(), one.width())
		}
	}
}
