package child

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// TempDir creates a directory for a child's data, after it has removed those of killed tests: their lock files are not
// locked. The caller calls remove after the child has ended.
func TempDir(name string) (dir string, remove func(), err error) {
	// Another process's sweep must not find a lock file that is not locked yet.
	defer lockSweep()()
	sweep(name)
	dir, err = os.MkdirTemp("", "effectonce-"+name+"-")
	if err != nil {
		return "", nil, fmt.Errorf("create a directory for %s: %w", name, err)
	}
	unlock, ok := Lock(dir + ".lock")
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
		unlock, ok := Lock(l)
		if !ok {
			continue // in use
		}
		_ = os.RemoveAll(l[:len(l)-len(".lock")])
		_ = os.Remove(l)
		unlock()
	}
}

// FreePort returns a TCP port of 127.0.0.1 that was free a moment ago. If another process takes it, the caller retries.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
