//go:build !linux

package child

import (
	"os/exec"
	"syscall"
)

// No death signal here: a test that is killed leaves its servers to be found by hand.
func prepare(*exec.Cmd, syscall.Signal) {}
