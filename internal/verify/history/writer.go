package history

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// Writer writes the history of one process. Its methods may be called from any goroutine.
type Writer struct {
	process string

	mu  sync.Mutex
	f   *os.File
	n   int64
	err error
}

// Create begins a history in a directory: a new file for every start of a process, named after it.
func Create(dir, process string) (*Writer, error) {
	f, err := os.CreateTemp(dir, process+"-*"+extension)
	if err != nil {
		return nil, fmt.Errorf("history: begin that of %s: %w", process, err)
	}
	return &Writer{process: process, f: f}, nil
}

// Write appends an entry and returns its number, for Entry.Op of what ends it. It sets N and Process, and At when it is
// zero. The line is with the kernel when Write returns, so it survives the process, by whatever death; not the machine.
// After an error nothing more is written: a process that cannot tell what it does must not do it.
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
		// One write of the whole line: a kill in between leaves a prefix of it, at the end of the file.
		_, err = w.f.Write(append(line, '\n'))
	}
	if err != nil {
		w.err = fmt.Errorf("history: write that of %s: %w", w.process, err)
		return 0, w.err
	}
	w.n++
	return w.n, nil
}

// Err is the first error of a Write, for callers that cannot look at each, such as an Observer's callbacks.
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
