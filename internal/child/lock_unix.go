//go:build unix

package child

import (
	"os"
	"path/filepath"
	"syscall"
)

func lock(path string) (unlock func(), ok bool) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, false
	}
	return func() { _ = f.Close() }, true
}

// guard waits until no other process of this machine makes or sweeps directories, and keeps them waiting until it is left.
// Another user's file cannot be opened: then there is no guard, and none is needed, for neither can the directories be.
func guard() (leave func()) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "effectonce.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return func() {}
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	return func() { _ = f.Close() }
}
