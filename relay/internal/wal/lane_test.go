package wal

import (
	"testing"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// TestWALLaneOf: the hash is the same as Postgres'.
func TestWALLaneOf(t *testing.T) {
	for text, want := range sql.Vectors() {
		if got := int64(hashExtended([]byte(text))); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
