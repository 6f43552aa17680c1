package child

import (
	"os/exec"
	"syscall"
)

func prepare(cmd *exec.Cmd, deathSignal syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = deathSignal
	// In its own process group, so that Ctrl-C in a terminal reaches the test alone, which stops the child in order.
	cmd.SysProcAttr.Setpgid = true
}
