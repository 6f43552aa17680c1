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

const memory = "/dev/shm"

// room returns the number of free bytes; 0: not known.
func room(dir string) uint64 {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0
	}
	return s.Bavail * uint64(s.Bsize)
}
