// Package interop holds tests with what others write and read: Watermill's own publishers and subscribers, and tools of
// Kafka.
package interop

import (
	"os"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestMain does not look for goroutines that were left: sarama and Watermill's Deduplicator have some for ever.
func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	kafkatest.Stop()
	os.Exit(code)
}
