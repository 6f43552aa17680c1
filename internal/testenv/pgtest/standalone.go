package pgtest

import "slices"

// Standalone starts a server with fsync on for callers that are no test; settings ("name=value") win over the package's
// own. The caller closes it.
func Standalone(settings ...string) (*Server, error) {
	return startServer(slices.Concat(durable, settings))
}
