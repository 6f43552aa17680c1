package child

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
)

// TempDir creates a directory for a child's data, after it has removed those of killed tests: their lock files are not
// locked. The caller calls remove after the child has ended.
func TempDir(name string) (dir string, remove func(), err error) {
	base := os.TempDir()
	sweep(base, name)
	return tempDir(base, name)
}

// MemoryDir is TempDir in memory, for small data in many files, where TMPDIR does not say otherwise and there is room.
func MemoryDir(name string) (dir string, remove func(), err error) {
	if os.Getenv("TMPDIR") != "" || memory == "" {
		return TempDir(name)
	}
	sweep(memory, name) // what killed tests have left may be why there is no room
	if room(memory) < 4<<30 {
		return TempDir(name)
	}
	return tempDir(memory, name)
}

func tempDir(base, name string) (dir string, remove func(), err error) {
	// Another process's sweep must not find a lock file that is not locked yet.
	defer lockSweep(base)()
	dir, err = os.MkdirTemp(base, "effectonce-"+name+"-")
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

func sweep(base, name string) {
	defer lockSweep(base)()
	locks, _ := filepath.Glob(filepath.Join(base, "effectonce-"+name+"-*.lock"))
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

// lastPort is the port that FreePort looked at last, counted from firstPort. Each process begins elsewhere.
var lastPort = func() *atomic.Uint32 {
	var n atomic.Uint32
	n.Store(rand.Uint32N(ports))
	return &n
}()

// The ports are below those that systems give to connections and to listeners on any port, so that a server that is
// stopped finds its port free when it starts again.
const (
	firstPort = 20_000
	ports     = 12_000
)

// FreePort returns a TCP port of 127.0.0.1 that was free a moment ago. If another process takes it, the caller retries.
// It does not return the same one soon again. On Linux the FreePort of another process does not return it before the
// end of this process: a server that is stopped for a while starts again on its port.
func FreePort() (int, error) {
	var err error
	for range 100 {
		var l net.Listener
		port := firstPort + int(lastPort.Add(1)%ports)
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			continue
		}
		if err = l.Close(); err != nil || reserve(port) {
			return port, err
		}
		err = fmt.Errorf("port %d is another process'", port)
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}
