package format

import (
	"fmt"
	"strings"
	"time"
)

// The windows of plots.
const (
	Hour = time.Hour
	Day  = 24 * time.Hour
)

// The plots' size in their own units; the stylesheet scales it.
const (
	plotWidth  = 600.0
	plotHeight = 100.0
	plotSlots  = 120
)

// Plot draws lines over a window of time that ends now. One that has been sampled for less than the window begins with
// its first sample.
type Plot struct {
	Title, Unit string
	From, To    time.Time
	Lines       []Line
}

// Line is the line of one figure, with its highest value in each slot; -1: not known.
type Line struct {
	Name   string
	Values [plotSlots]float64
}

// NewPlot returns a plot without lines.
func NewPlot(title, unit string, first, now time.Time, window time.Duration) Plot {
	return Plot{Title: title, Unit: unit, From: later(first, now.Add(-window)), To: now}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Add adds a line of count samples, if one of them is known.
func (p *Plot) Add(name string, count int, sample func(i int) (at time.Time, value float64)) {
	l := Line{Name: name}
	for i := range l.Values {
		l.Values[i] = -1
	}
	known := false
	for i := range count {
		at, value := sample(i)
		if slot := p.slot(at); slot >= 0 && value >= 0 {
			l.Values[slot], known = max(l.Values[slot], value), true
		}
	}
	if known {
		p.Lines = append(p.Lines, l)
	}
}

func (p *Plot) slot(at time.Time) int {
	span := p.To.Sub(p.From)
	if at.Before(p.From) || at.After(p.To) || span <= 0 {
		return -1
	}
	return min(int(at.Sub(p.From)*plotSlots/span), plotSlots-1)
}

// Middle is the time in the middle.
func (p Plot) Middle() time.Time { return p.From.Add(p.To.Sub(p.From) / 2) }

// Top returns the highest value, at least 1.
func (p Plot) Top() float64 {
	top := 1.0
	for _, l := range p.Lines {
		for _, v := range l.Values {
			top = max(top, v)
		}
	}
	return top
}

// Points returns the points of a line's polyline.
func (p Plot) Points(l Line) string {
	top := p.Top()
	var b strings.Builder
	for i, v := range l.Values {
		if v >= 0 {
			fmt.Fprintf(&b, "%.1f,%.1f ", (float64(i)+.5)*plotWidth/plotSlots, plotHeight-1-v/top*(plotHeight-4))
		}
	}
	return strings.TrimSpace(b.String())
}

// Slot is a part of a plot that shows its values to a pointer.
type Slot struct {
	X, Width float64
	Says     string
}

// Slots returns those with a value.
func (p Plot) Slots() (list []Slot) {
	span := p.To.Sub(p.From)
	for i := range plotSlots {
		var says []string
		for _, l := range p.Lines {
			if v := l.Values[i]; v >= 0 {
				says = append(says, l.Name+" "+Rate(v)+p.Unit)
			}
		}
		if len(says) > 0 {
			ago := span * time.Duration(plotSlots-1-i) / plotSlots
			list = append(list, Slot{
				float64(i) * plotWidth / plotSlots, plotWidth / plotSlots,
				Dur(ago) + " ago: " + strings.Join(says, ", "),
			})
		}
	}
	return list
}
