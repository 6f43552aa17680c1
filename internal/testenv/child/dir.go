package child

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// TempDir makes a directory for a child's data, and first removes those that killed tests left behind.
// A lock file, held while the process lives, tells the two apart. The caller calls remove when the child is gone.
func TempDir(name string) (dir string, remove func(), err error) {
	// A sweep of another process must not meet a lock file that is made and not yet locked.
	defer guard()()
	sweep(name)
	dir, err = os.MkdirTemp("", "effectonce-"+name+"-")
	if err != nil {
		return "", nil, fmt.Errorf("make a directory for %s: %w", name, err)
	}
	unlock, ok := lock(dir + ".lock")
	if !ok {
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("lock %s.lock: is the directory writable?", dir)
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = os.Remove(dir + ".lock")
		unlock()
	}, nil
}

func sweep(name string) {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), "effectonce-"+name+"-*.lock"))
	for _, l := range locks {
		unlock, ok := lock(l)
		if !ok {
			continue // its process lives
		}
		_ = os.RemoveAll(l[:len(l)-len(".lock")])
		_ = os.Remove(l)
		unlock()
	}
}

// FreePort returns a TCP port of 127.0.0.1 that was free a moment ago; the caller starts again when another took it.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
