//go:build unix

package pgtest

import (
	"os/exec"
	"syscall"
)

func runAs(cmd *exec.Cmd, uid, gid int) {
	if uid < 0 {
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}
