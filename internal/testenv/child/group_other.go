//go:build !unix

package child

import (
	"os"
	"os/exec"
)

// Group makes cmd's Cancel an interrupt.
func Group(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
}

// Run does nothing: there is no other account on this system.
func (Account) Run(*exec.Cmd) {}

// Orphaned is not known on this system.
func Orphaned(int) bool { return false }
