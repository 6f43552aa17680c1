package ui

import (
	"fmt"
	"strings"
	"time"

	"github.com/effectonce/effectonce/relay"
)

// point is a sample of the plots. Rates are since the previous point; -1: unknown.
type point struct {
	At                            time.Time
	Backlog, Held, Parked         float64
	Oldest                        float64 // seconds
	In, Out, Effects              float64 // per second
	Halted, InParked, Quarantined float64
	SlotBytes                     float64
	lastID                        int64
	waiting                       int64
	decided                       int64
	capped                        bool
}

// kept is the length of the plots.
const kept = time.Hour

// remember makes a point from a state, and keeps it if the last one is old enough.
func (d *database) remember(st state) point {
	p := pointOf(st, time.Now())
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.history); n > 0 {
		last := d.history[n-1]
		if p.At.Sub(last.At) < sampleEvery-time.Second { // a point between two: its rates are the last one's
			p.In, p.Out, p.Effects = last.In, last.Out, last.Effects
			return p
		}
		p.since(last)
	}
	d.history = append(d.history, p)
	for len(d.history) > 0 && p.At.Sub(d.history[0].At) > kept {
		d.history = d.history[1:]
	}
	return p
}

func pointOf(st state, at time.Time) point {
	p := point{At: at, In: -1, Out: -1, Effects: -1}
	if s := st.Outbox; s != nil {
		p.Backlog, p.Held, p.Parked = float64(s.Backlog), float64(s.Held), float64(s.Parked)
		p.Oldest = s.Oldest.Seconds()
		p.lastID, p.waiting = s.LastID, s.Backlog+s.Held+s.Parked
		p.capped = max(s.Backlog, s.Held, s.Parked) >= relay.SampleLimit
		if s.WAL != nil {
			p.SlotBytes = float64(s.WAL.LagBytes)
		}
	}
	for _, c := range st.Inbox {
		p.InParked += float64(c.Parked)
		p.Quarantined += float64(c.Quarantined)
		for _, part := range c.Partitions {
			p.decided += part.From
			if part.HaltedAt != nil {
				p.Halted++
			}
		}
	}
	return p
}

// since computes the rates. The append rate is the growth of the sequence of ids; the publish rate is that minus the
// growth of the backlog. A transaction that rolled back counts in both.
func (p *point) since(last point) {
	seconds := p.At.Sub(last.At).Seconds()
	if seconds <= 0 {
		return
	}
	rate := func(n int64) float64 { return max(float64(n)/seconds, 0) }
	p.In = rate(p.lastID - last.lastID)
	if !p.capped && !last.capped {
		p.Out = rate(p.lastID - last.lastID - (p.waiting - last.waiting))
	}
	p.Effects = rate(p.decided - last.decided)
}

// past returns one value of each point.
func (d *database) past(value func(point) float64) plot {
	d.mu.Lock()
	defer d.mu.Unlock()
	var p plot
	for _, at := range d.history {
		p.add(at.At, value(at))
	}
	return p
}

// The plots' size in their own units; the stylesheet scales it.
const (
	plotWidth  = 120.0
	plotHeight = 28.0
)

// plot is a line of the last hour.
type plot struct {
	at     []time.Time
	values []float64
}

func (p *plot) add(at time.Time, value float64) {
	if value >= 0 {
		p.at, p.values = append(p.at, at), append(p.values, value)
	}
}

// Empty reports whether there is nothing to draw.
func (p plot) Empty() bool { return len(p.values) < 2 }

// Top returns the highest value.
func (p plot) Top() float64 {
	top := 0.0
	for _, v := range p.values {
		top = max(top, v)
	}
	return top
}

// Line returns the points of an SVG polyline. The plot is an hour wide, and ends with the last point.
func (p plot) Line() string {
	if p.Empty() {
		return ""
	}
	top, end := p.Top(), p.at[len(p.at)-1]
	if top == 0 {
		top = 1
	}
	var b strings.Builder
	for i, v := range p.values {
		x := plotWidth * (1 - end.Sub(p.at[i]).Seconds()/kept.Seconds())
		y := plotHeight - 2 - v/top*(plotHeight-4)
		fmt.Fprintf(&b, "%.1f,%.1f ", max(x, 0), y)
	}
	return strings.TrimSpace(b.String())
}

// Area returns the points of the polygon below the line.
func (p plot) Area() string {
	if p.Empty() {
		return ""
	}
	first := plotWidth * (1 - p.at[len(p.at)-1].Sub(p.at[0]).Seconds()/kept.Seconds())
	return fmt.Sprintf("%.1f,%.0f %s %.0f,%.0f", max(first, 0), plotHeight, p.Line(), plotWidth, plotHeight)
}
