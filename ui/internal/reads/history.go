package reads

import (
	"time"

	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/ui/internal/format"
)

// SampleEvery is the distance of the points.
const SampleEvery = 10 * time.Second

// Point is a sample of the plots. Rates are since the previous point; -1: unknown.
type Point struct {
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

// remember makes a point from a state, and keeps it if the last one is old enough.
func (d *Database) remember(st State) Point {
	p := pointOf(st, time.Now())
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.history); n > 0 {
		last := d.history[n-1]
		if p.At.Sub(last.At) < SampleEvery-time.Second { // a point between two: its rates are the last one's
			p.In, p.Out, p.Effects = last.In, last.Out, last.Effects
			return p
		}
		p.since(last)
	}
	d.history = append(d.history, p)
	for len(d.history) > 0 && p.At.Sub(d.history[0].At) > format.Kept {
		d.history = d.history[1:]
	}
	return p
}

func pointOf(st State, at time.Time) Point {
	p := Point{At: at, In: -1, Out: -1, Effects: -1}
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
func (p *Point) since(last Point) {
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

// Past returns one value of each point.
func (d *Database) Past(value func(Point) float64) format.Plot {
	d.mu.Lock()
	defer d.mu.Unlock()
	var p format.Plot
	for _, at := range d.history {
		p.Add(at.At, value(at))
	}
	return p
}

// LastOut returns when events last left the outbox, within the past hour.
func (d *Database) LastOut() (at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.history {
		if p.Out > 0 {
			at = p.At
		}
	}
	return at
}
