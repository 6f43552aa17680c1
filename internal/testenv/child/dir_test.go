package child_test

import (
	"os"
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
