package relay

import "testing"

// TestWALLaneOf: the hash is Postgres' own.
func TestWALLaneOf(t *testing.T) {
	for text, want := range hashVectors() {
		if got := int64(hashExtended([]byte(text))); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
