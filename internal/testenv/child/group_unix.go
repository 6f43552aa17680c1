//go:build unix

package child

import (
	"os"
	"os/exec"
	"syscall"
)

// Group makes cmd the leader of a process group, and its Cancel an interrupt of all of them: a shell passes none on.
func Group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
}

// Orphaned reports whether the process parent, which was this one's, has ended.
func Orphaned(parent int) bool { return os.Getppid() != parent }
