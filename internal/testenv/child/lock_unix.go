//go:build unix

package child

import (
	"os"
	"path/filepath"
	"syscall"
)

// Lock takes a file for this process, until unlock or its end. Not ok: another has it.
func Lock(path string) (unlock func(), ok bool) {
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

// lockSweep locks out other processes that create or sweep directories. unlock removes the lock file, so a process that
// was waiting for it starts over with a new one. If the file belongs to another user there is no lock, and none is
// needed: that user's directories cannot be removed either.
func lockSweep(base string) (unlock func()) {
	path := filepath.Join(base, "effectonce.lock")
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return func() {}
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			_ = f.Close()
			return func() {}
		}
		locked, err := f.Stat()
		current, missing := os.Stat(path)
		if err == nil && missing == nil && os.SameFile(locked, current) {
			return func() {
				_ = os.Remove(path)
				_ = f.Close()
			}
		}
		_ = f.Close()
	}
}
