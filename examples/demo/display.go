package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/effectonce/effectonce/cmd/devstack"
)

// display prints lines and the progress: a bar on a terminal, elsewhere a line a second.
type display struct {
	out   io.Writer
	total int

	mu       sync.Mutex
	bar      *progressbar.ProgressBar // nil: not shown
	began    time.Time
	last     counts
	lastLine time.Time
}

func newDisplay(out io.Writer, total int) *display {
	return &display{out: out, total: total, began: time.Now()}
}

// printf prints a line above the bar.
func (d *display) printf(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar != nil {
		_ = d.bar.Clear()
	}
	fmt.Fprintf(d.out, "%6.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
	if d.bar != nil {
		_ = d.bar.RenderBlank()
	}
}

// showBar shows the bar if the output is a terminal.
func (d *display) showBar() {
	if !devstack.IsTerminal(d.out) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bar = progressbar.NewOptions(d.total, progressbar.OptionSetWriter(d.out), progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
		progressbar.OptionClearOnFinish(), progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionUseANSICodes(true))
	_ = d.bar.RenderBlank()
}

func (d *display) hideBar() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar != nil {
		_ = d.bar.Clear()
		_ = d.bar.Exit()
		d.bar = nil
	}
}

func (d *display) update(c counts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar != nil {
		d.bar.Describe(c.String())
		// A full bar hides itself, and offsets are still being committed.
		_ = d.bar.Set(min(c.mailed, c.booked, d.total-1))
		return
	}
	if c != d.last && time.Since(d.lastLine) >= time.Second {
		fmt.Fprintf(d.out, "%6.1fs  %v\n", time.Since(d.began).Seconds(), c)
		d.last, d.lastLine = c, time.Now()
	}
}
