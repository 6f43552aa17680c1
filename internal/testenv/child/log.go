package child

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// shows has the logs that a test shows already: a test with several databases of a server shows its log once.
var shows sync.Map

type shown struct {
	t    testing.TB
	path string
}

// mostShown is how much of the end of a log a failed test shows, in bytes.
const mostShown = 4000

// ShowLog makes t, if it fails, end with what a server wrote to its log meanwhile. Other tests may use the server too.
// An empty path has no effect.
func ShowLog(t testing.TB, server, path string) {
	t.Helper()
	key := shown{t, path}
	if _, again := shows.LoadOrStore(key, true); path == "" || again {
		return
	}
	began := size(path)
	t.Cleanup(func() {
		shows.Delete(key)
		if !t.Failed() {
			return
		}
		if text, err := tail(path, began); err != nil {
			t.Logf("the log of %s: %v", server, err)
		} else if text != "" {
			t.Logf("%s logged meanwhile:\n%s", server, text)
		}
	})
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// tail returns the end of a file, at most from an offset on, without the lines that go on with a statement or a stack.
func tail(path string, from int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.NewSectionReader(f, max(from, size(path)-16*mostShown), 16*mostShown))
	if err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	lines := slices.Collect(strings.Lines(string(b)))
	at, shown := len(lines), 0
	for at > 0 {
		if strings.HasPrefix(lines[at-1], "\t") {
			lines[at-1] = ""
		}
		if shown += len(lines[at-1]); shown > mostShown {
			break
		}
		at--
	}
	return strings.TrimSpace(strings.Join(lines[at:], "")), nil
}
