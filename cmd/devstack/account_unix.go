//go:build unix

package devstack

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// account is the user that runs the server: the current one, or another because Postgres refuses root.
type account struct {
	other    bool
	uid, gid int
}

func unprivileged() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"nobody", "postgres"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err == nil && err2 == nil && uid > 0 {
			return account{other: true, uid: uid, gid: gid}, nil
		}
	}
	return account{}, errors.New("Postgres does not run as root, and there is no account nobody or postgres to run " +
		"it as: start this program as an ordinary user")
}

func (a account) run(cmd *exec.Cmd) {
	// In its own process group, so that Ctrl-C in a terminal reaches this process alone, which stops the others in
	// order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a.other {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
}
