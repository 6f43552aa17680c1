//go:build unix

package child

import "syscall"

// Pause stops a process until Resume.
const (
	Pause  = syscall.SIGSTOP
	Resume = syscall.SIGCONT
)
