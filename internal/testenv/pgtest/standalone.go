package pgtest

import "slices"

// Standalone starts a server with fsync on for callers without a testing.TB. settings ("name=value") override the
// defaults. The caller closes it.
func Standalone(settings ...string) (*Server, error) {
	return startServer(slices.Concat(durable, settings))
}
