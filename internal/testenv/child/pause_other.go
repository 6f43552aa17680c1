//go:build !unix

package child

import "syscall"

// There are no such signals on this system: sending them fails.
const (
	Pause  = syscall.Signal(0x13)
	Resume = syscall.Signal(0x12)
)
