package history

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// Writer writes the history of a process. It is safe for concurrent use.
type Writer struct {
	process string

	mu  sync.Mutex
	f   *os.File
	n   int64
	err error
}

// Create creates a history in a directory: a new file for each start of a process, with its name.
func Create(dir, process string) (*Writer, error) {
	f, err := os.CreateTemp(dir, process+"-*"+extension)
	if err != nil {
		return nil, fmt.Errorf("history: create that of %s: %w", process, err)
	}
	return &Writer{process: process, f: f}, nil
}

// Write appends an entry and returns its number, for Entry.Op. It sets N and Process, and At if it is zero. The line
// survives the death of the process, but not of the machine. After an error Write always fails: a process that cannot
// record its operations must stop.
func (w *Writer) Write(e Entry) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	e.N, e.Process = w.n+1, w.process
	if e.At.IsZero() {
		e.At = time.Now()
	}
	line, err := json.Marshal(e)
	if err == nil {
		// One write for the whole line, so that a kill leaves at most a prefix of it at the end of the file.
		_, err = w.f.Write(append(line, '\n'))
	}
	if err != nil {
		w.err = fmt.Errorf("history: write that of %s: %w", w.process, err)
		return 0, w.err
	}
	w.n++
	return w.n, nil
}

// Err returns the first error of a Write, for callers that ignore errors, such as Observers' callbacks.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close closes the file, and returns the first error of a Write or its own.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.f.Close(); w.err == nil && err != nil {
		w.err = fmt.Errorf("history: close that of %s: %w", w.process, err)
	}
	return w.err
}
