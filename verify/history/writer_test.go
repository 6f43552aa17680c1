package history

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
)

func TestWriterReader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := Create(dir, "producer-1")
	if err != nil {
		t.Fatal(err)
	}
	e := Event{ID: uuid.New(), Topic: "payments", Key: "a", Version: 7, Business: "p7", Digest: Digest([]byte("x"))}
	begin, err := w.Write(Entry{Kind: KindAppend, Events: []Event{e}})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				_, _ = w.Write(Entry{Kind: KindNote, Detail: strings.Repeat("x", 300)})
			}
		})
	}
	all.Wait()
	if _, err := w.Write(Entry{Kind: KindAppended, Op: begin, Outcome: OK}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := ReadDir(dir)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d histories, %v", len(got), err)
	}
	p := got[0]
	first, last := p.Entries[0], p.Entries[len(p.Entries)-1]
	if len(p.Entries) != 402 || p.Torn || first.Process != "producer-1" || !slices.Equal(first.Events, []Event{e}) {
		t.Errorf("read %d entries, torn %v, first %+v", len(p.Entries), p.Torn, first)
	}
	if last.Op != first.N || last.Outcome != OK {
		t.Errorf("the last is %+v", last)
	}
}

// TestReadForgivesATornLastLineOnly: Read accepts only a torn last line.
func TestReadForgivesATornLastLineOnly(t *testing.T) {
	t.Parallel()
	const one, two = `{"n":1,"at":"2026-01-01T00:00:00Z","process":"p","kind":"start"}`,
		`{"n":2,"at":"2026-01-01T00:00:00Z","process":"p","kind":"stop"}`
	for name, c := range map[string]struct {
		text    string
		entries int
		torn    bool
		err     string
	}{
		"whole":          {one + "\n" + two + "\n", 2, false, ""},
		"empty":          {"", 0, false, ""},
		"torn":           {one + "\n" + two[:20], 1, true, ""},
		"end of line":    {one + "\n" + two, 1, true, ""}, // whole, but nobody can know
		"torn in middle": {one[:20] + "\n" + two + "\n", 0, false, "line 1"},
		"line missing":   {two + "\n", 0, false, "lines are missing"},
		"unknown field":  {`{"n":1,"sort":"start"}` + "\n", 0, false, "sort"},
	} {
		p, err := Read(name, strings.NewReader(c.text))
		if c.err == "" && (err != nil || len(p.Entries) != c.entries || p.Torn != c.torn) {
			t.Errorf("%s: %d entries, torn %v, %v", name, len(p.Entries), p.Torn, err)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.err)
		}
	}
}

// TestWriterStopsAtAnError: after an error a Writer writes nothing, so that histories have no gaps.
func TestWriterStopsAtAnError(t *testing.T) {
	t.Parallel()
	w, err := Create(t.TempDir(), "p")
	if err != nil {
		t.Fatal(err)
	}
	_ = w.f.Close()
	if _, err := w.Write(Entry{Kind: KindStart}); err == nil {
		t.Fatal("a closed file was written to")
	}
	if w.f, err = os.Create(filepath.Join(t.TempDir(), "again")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(Entry{Kind: KindStart}); err == nil || w.Err() == nil || w.Close() == nil {
		t.Error("the first error was forgotten")
	}
}
