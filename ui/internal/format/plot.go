package format

import (
	"fmt"
	"strings"
	"time"
)

// Kept is the time that a Plot shows.
const Kept = time.Hour

// The plots' size in their own units; the stylesheet scales it.
const (
	plotWidth  = 120.0
	plotHeight = 28.0
)

// Plot is a line of the last hour.
type Plot struct {
	at     []time.Time
	values []float64
}

// Add adds a point, unless its value is negative, which means unknown.
func (p *Plot) Add(at time.Time, value float64) {
	if value >= 0 {
		p.at, p.values = append(p.at, at), append(p.values, value)
	}
}

// Empty reports whether there is nothing to draw.
func (p Plot) Empty() bool { return len(p.values) < 2 }

// Top returns the highest value.
func (p Plot) Top() float64 {
	top := 0.0
	for _, v := range p.values {
		top = max(top, v)
	}
	return top
}

// Line returns the points of an SVG polyline. The Plot is an hour wide, and ends with the last point.
func (p Plot) Line() string {
	if p.Empty() {
		return ""
	}
	top, end := p.Top(), p.at[len(p.at)-1]
	if top == 0 {
		top = 1
	}
	var b strings.Builder
	for i, v := range p.values {
		x := plotWidth * (1 - end.Sub(p.at[i]).Seconds()/Kept.Seconds())
		y := plotHeight - 2 - v/top*(plotHeight-4)
		fmt.Fprintf(&b, "%.1f,%.1f ", max(x, 0), y)
	}
	return strings.TrimSpace(b.String())
}

// Area returns the points of the polygon below the line.
func (p Plot) Area() string {
	if p.Empty() {
		return ""
	}
	first := plotWidth * (1 - p.at[len(p.at)-1].Sub(p.at[0]).Seconds()/Kept.Seconds())
	return fmt.Sprintf("%.1f,%.0f %s %.0f,%.0f", max(first, 0), plotHeight, p.Line(), plotWidth, plotHeight)
}
