package child

import (
	"os/exec"
	"syscall"
)

func prepare(cmd *exec.Cmd, dying syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = dying
	// A group of its own: Ctrl-C in a terminal reaches the test, and the test ends the child in order.
	cmd.SysProcAttr.Setpgid = true
}
