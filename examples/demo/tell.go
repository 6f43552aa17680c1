package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// teller tells a person what happens: lines, and between them a bar on a terminal, or a line a second elsewhere.
type teller struct {
	out   io.Writer
	total int

	mu    sync.Mutex
	bar   *progressbar.ProgressBar // nil: none is shown
	began time.Time
	last  counts
	at    time.Time // of the last plain line
}

func newTeller(out io.Writer, total int) *teller {
	return &teller{out: out, total: total, began: time.Now()}
}

// say prints a line, above the bar when there is one.
func (t *teller) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar != nil {
		_ = t.bar.Clear()
	}
	fmt.Fprintf(t.out, "%6.1fs  %s\n", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...))
	if t.bar != nil {
		_ = t.bar.RenderBlank()
	}
}

// begin shows the bar, where there is a terminal.
func (t *teller) begin() {
	f, ok := t.out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bar = progressbar.NewOptions(t.total, progressbar.OptionSetWriter(t.out), progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
		progressbar.OptionClearOnFinish(), progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionUseANSICodes(true))
	_ = t.bar.RenderBlank()
}

// end takes the bar away.
func (t *teller) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar != nil {
		_ = t.bar.Clear()
		_ = t.bar.Exit()
		t.bar = nil
	}
}

// show shows how far the payments have come.
func (t *teller) show(c counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bar != nil {
		t.bar.Describe(c.String())
		// Never full: a full bar counts as finished, and hides, while offsets are still being committed.
		_ = t.bar.Set(min(c.mailed, c.booked, t.total-1))
		return
	}
	if c != t.last && time.Since(t.at) >= time.Second {
		fmt.Fprintf(t.out, "%6.1fs  %v\n", time.Since(t.began).Seconds(), c)
		t.last, t.at = c, time.Now()
	}
}
