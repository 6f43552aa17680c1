package pgtest

import (
	"slices"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Standalone starts a server on disk, with fsync on, for callers without a testing.TB. settings ("name=value") override
// the defaults. The caller closes it.
func Standalone(settings ...string) (*Server, error) {
	return startServer(child.TempDir, slices.Concat(durable, settings))
}
