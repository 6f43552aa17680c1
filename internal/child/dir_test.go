package child_test

import (
	"os"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/internal/child"
)

// TestTempDir: directories that are made at the same time are not taken for what killed processes left behind.
func TestTempDir(t *testing.T) {
	t.Parallel()
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
}
