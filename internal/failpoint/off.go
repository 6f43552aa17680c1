//go:build !failpoints

package failpoint

import (
	"context"
	"net"
)

// Enabled tells whether this binary was built with the tag failpoints.
const Enabled = false

// Hit reaches a point that has no error path. Without the build tag it is nothing.
func Hit(Name) {}

// Err reaches a point where a fault may come back as an error. Without the build tag it is nil, and what stands behind
// it is compiled away.
func Err(Name) error { return nil }

// After reaches a point that lies behind a step, unless the step has failed. It returns the step's error, or the
// point's. Without the build tag it is err.
func After(_ Name, err error) error { return err }

// Hits counts how often the process has reached a point: never, without the build tag.
func Hits(Name) int64 { return 0 }

// Produced puts [PublisherSent] into the connections that dial makes. Without the build tag it is dial.
func Produced(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return dial
}
