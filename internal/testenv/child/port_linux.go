package child

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// reservations keeps the sockets of reserve from being collected.
var reservations sync.Map

// reserve takes a port for this process until its end. It returns false if another process has it. A socket without a
// file says so: a lock file of a process that has ended would stay.
func reserve(port int) bool {
	l, err := net.Listen("unix", fmt.Sprintf("@effectonce-port-%d", port))
	if err == nil {
		reservations.Store(port, l)
	}
	return !errors.Is(err, syscall.EADDRINUSE)
}
