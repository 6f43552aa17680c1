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

// guard waits until no other process of this machine makes or sweeps directories, and keeps them waiting until it is
// left. Who leaves removes the file; who waited for a file that is gone by then begins again, so that all wait for the
// same one. Another user's file cannot be opened: then there is no guard, and none is needed, for neither can the
// directories be.
func guard() (leave func()) {
	path := filepath.Join(os.TempDir(), "effectonce.lock")
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return func() {}
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			_ = f.Close()
			return func() {}
		}
		held, err := f.Stat()
		there, gone := os.Stat(path)
		if err == nil && gone == nil && os.SameFile(held, there) {
			return func() {
				_ = os.Remove(path)
				_ = f.Close()
			}
		}
		_ = f.Close()
	}
}
