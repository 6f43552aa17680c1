package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const extension = ".history.jsonl"

// Process is the history of a process from one start to its end.
type Process struct {
	File    string // its base name
	Entries []Entry
	// Torn says that the last line is incomplete: the process died while it wrote it.
	Torn bool
}

// ReadDir reads all histories of a directory, sorted by file name.
func ReadDir(dir string) ([]Process, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	if err != nil {
		return nil, fmt.Errorf("history: list %s: %w", dir, err)
	}
	all := make([]Process, 0, len(files))
	for _, name := range files {
		p, err := readFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func readFile(name string) (Process, error) {
	f, err := os.Open(name)
	if err != nil {
		return Process{}, fmt.Errorf("history: %w", err)
	}
	defer func() { _ = f.Close() }()
	return Read(filepath.Base(name), f)
}

// Read reads a history. It accepts an incomplete last line. Any other line that does not parse, or a gap in the
// numbers, is an error.
func Read(name string, from io.Reader) (Process, error) {
	p, in := Process{File: name}, bufio.NewReaderSize(from, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			p.Torn = len(line) > 0
			return p, nil
		}
		if err != nil {
			return p, fmt.Errorf("history: read %s: %w", name, err)
		}
		var e Entry
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			return p, fmt.Errorf("history: %s, line %d: %w", name, len(p.Entries)+1, err)
		}
		if e.N != int64(len(p.Entries))+1 {
			return p, fmt.Errorf("history: %s, line %d has number %d: lines are missing", name, len(p.Entries)+1, e.N)
		}
		p.Entries = append(p.Entries, e)
	}
}
