// Package interop tests interoperability with other writers and readers: Watermill's publishers and subscribers, the
// CloudEvents SDK, database drivers, and Kafka tools.
package interop

import (
	"os"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestMain does not check for leaked goroutines: sarama and Watermill's Deduplicator leak some.
func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	kafkatest.Stop()
	os.Exit(code)
}
