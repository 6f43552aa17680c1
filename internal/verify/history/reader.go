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

// Process is the history of one start of a process.
type Process struct {
	File    string // its name, without the directory
	Entries []Entry
	// Torn says that the last line is not whole: the process died while it wrote.
	Torn bool
}

// ReadDir reads every history in a directory, by file name.
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

// Read reads a history. A last line without its end is forgiven, and nothing else is: a line that does not parse, or a
// number out of turn, means that the history cannot be believed.
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
