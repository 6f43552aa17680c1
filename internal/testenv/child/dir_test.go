package child_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// TestTempDir: concurrent calls do not remove each other's directories, and no file stays.
func TestTempDir(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				dir, remove, err := child.TempDir("child-test")
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(dir); err != nil {
					t.Error(err)
				}
				remove()
			}
		})
	}
	all.Wait()
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestFreePort: each port is another one, and no system gives it to a connection: Linux begins at 32768, others later.
func TestFreePort(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		port, err := child.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if port < 1024 || port >= 32768 || seen[port] {
			t.Fatal(port, seen)
		}
		seen[port] = true
	}
}

// TestFreePortOfAnotherProcess: a port that another process has got is not free while its server is stopped.
func TestFreePortOfAnotherProcess(t *testing.T) {
	if os.Getenv("FREE_PORT") != "" {
		port, err := child.FreePort()
		fmt.Println(port, err)
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux")
	}
	other := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	other.Env = append(os.Environ(), "FREE_PORT=1")
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	var taken int
	if _, err := fmt.Fscan(stdout, &taken); err != nil {
		t.Error(err)
	}
	child.LookNextAt(taken)
	if port, err := child.FreePort(); err != nil || port == taken {
		t.Errorf("port %d, %v; another process has %d", port, err, taken)
	}
	_ = stdin.Close()
	_ = other.Wait()
}
