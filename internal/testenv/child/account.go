package child

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// Account is the user that runs a server. The zero value is the current one.
type Account struct{ uid, gid int }

// Unprivileged is the current user or, because Postgres and PgBouncer refuse root, another one.
func Unprivileged() (Account, error) {
	if os.Geteuid() != 0 {
		return Account{}, nil
	}
	for _, name := range []string{"nobody", "postgres"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err == nil && err2 == nil && uid > 0 {
			return Account{uid, gid}, nil
		}
	}
	return Account{}, errors.New("no account runs Postgres: root cannot, and nobody and postgres do not exist: " +
		"start this program as an ordinary user")
}

// Other reports whether it is not the current user.
func (a Account) Other() bool { return a.uid > 0 }

// Own gives files to the account.
func (a Account) Own(paths ...string) error {
	for _, path := range paths {
		if !a.Other() {
			break
		}
		if err := os.Chown(path, a.uid, a.gid); err != nil {
			return fmt.Errorf("giving %s to the account that runs Postgres: %w", path, err)
		}
	}
	return nil
}
