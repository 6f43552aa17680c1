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

// Run makes cmd run as the account, in its own process group: Ctrl-C in a terminal reaches this process alone, which
// stops the others in order.
func (a Account) Run(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a.Other() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
}

// Orphaned reports whether the process parent, which was this one's, has ended.
func Orphaned(parent int) bool { return os.Getppid() != parent }
