package reads

import (
	"context"
	"time"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/ui/internal/format"
)

// Movement compares what comes in, goes out and is decided.
type Movement struct {
	State State // that it was read with
	// Ends are the ends of the consumers' partitions, read after their progress; EndsErr says why some are missing.
	Ends    map[Partition]int64
	EndsErr error
	Now     Point
	Flows   map[string]Flow // by consumer
	LastOut time.Time       // when events last left the outbox, as far as looks have seen it
}

// Partition is a partition of a topic.
type Partition struct {
	Topic     string
	Partition int32
}

// Flow is the movement of one consumer.
type Flow struct {
	Waiting int64         // records; -1: not known
	Decided float64       // records a second; -1: not known
	Last    time.Time     // when an effect was last committed; zero: not known
	Stands  time.Duration // how long looks have seen records of a partition wait, and none of them decided
}

// SampleEvery is the distance of the points of the last hour. Older ones are olderEvery apart.
const (
	SampleEvery = 10 * time.Second
	olderEvery  = 2 * time.Minute
)

// ratesOver is the time that rates are taken over: workers write their progress every ten seconds.
const ratesOver = 30 * time.Second

// Kind is a kind of figure in a Point.
type Kind int

// The rates are per second. The rate of appends is the growth of the sequence of ids, rolled back transactions
// included; that of publishing is the same minus the growth of what waits.
const (
	In Kind = iota
	Out
	Decided
	Backlog // events in the outbox
	Waiting // records that consumers have not decided
	Aside   // held, refused, failed and quarantined events
	kinds
)

// Point is a sample of the plots; -1: not known.
type Point struct {
	At time.Time
	Of [kinds]float64
}

// counts is what rates are computed from.
type counts struct {
	at              time.Time
	lastID, waiting int64
	capped          bool // waiting is a limit
	decided         map[string]int64
}

// stand is since when a partition has not moved while something waits there.
type stand struct {
	from  int64
	since time.Time
}

// past is what earlier looks have seen.
type past struct {
	points  []Point // the newest last
	counts  []counts
	stands  map[string]map[Partition]stand // by consumer
	last    counts                         // those of the look before
	lastOut time.Time
}

// move reads the movement. The ends are read after the progress, so that no end is behind it.
func (d *Database) move(ctx context.Context) (m Movement, err error) {
	if m.State, err = d.state(ctx); err != nil {
		return Movement{}, err
	}
	var partitions []inboxoperator.PartitionState
	for _, c := range m.State.Inbox {
		partitions = append(partitions, c.Partitions...)
	}
	m.Ends = map[Partition]int64{}
	if d.cfg.Kafka != nil && len(partitions) > 0 {
		asking, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
		defer cancel()
		var ends []int64
		ends, m.EndsErr = doctor.Ends(asking, client{d.cfg.Kafka}, partitions)
		for i, p := range partitions {
			if ends[i] >= 0 {
				m.Ends[Partition{p.Topic, p.Partition}] = ends[i]
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.past.see(&m, time.Now())
	return m, nil
}

// see completes a Movement with what has changed, and remembers it.
func (p *past) see(m *Movement, now time.Time) {
	c := counts{at: now, decided: map[string]int64{}}
	m.Now.At = now
	for i := range m.Now.Of {
		m.Now.Of[i] = -1
	}
	aside := int64(0)
	if s := m.State.Outbox; s != nil {
		c.lastID, c.waiting = s.LastID, s.Backlog+s.Held+s.Parked
		c.capped = max(s.Backlog, s.Held, s.Parked) >= relay.SampleLimit
		m.Now.Of[Backlog] = float64(s.Backlog)
		aside = s.Held + s.Parked
	}
	stands := map[string]map[Partition]stand{}
	m.Flows = map[string]Flow{}
	waiting, known := int64(0), m.State.HasInbox
	for _, one := range m.State.Inbox {
		aside += one.Parked + one.Quarantined
		f, at := flowOf(one, m.Ends, p.stands[one.Consumer], now)
		stands[one.Consumer] = at
		m.Flows[one.Consumer] = f
		known = known && f.Waiting >= 0
		waiting += f.Waiting
		for _, part := range one.Partitions {
			c.decided[one.Consumer] += part.From
		}
	}
	if known {
		m.Now.Of[Waiting] = float64(waiting)
	}
	m.Now.Of[Aside] = float64(aside)
	p.stands = stands
	p.rates(m, c)
	if l := p.last; !l.at.IsZero() && !l.capped && !c.capped && c.lastID-l.lastID > c.waiting-l.waiting {
		p.lastOut = now
	}
	p.last = c
	m.LastOut = p.lastOut
	p.keep(m.Now)
}

// flowOf compares a consumer's progress with the ends.
func flowOf(c inboxoperator.ConsumerDiagnosis, ends map[Partition]int64, before map[Partition]stand, now time.Time) (
	f Flow, stands map[Partition]stand,
) {
	f.Decided = -1
	stands = map[Partition]stand{}
	for _, part := range c.Partitions {
		if part.EffectAt != nil && part.EffectAt.After(f.Last) {
			f.Last = *part.EffectAt
		}
		at := Partition{part.Topic, part.Partition}
		end, known := ends[at]
		switch {
		case !known:
			f.Waiting = -1
			continue
		case end <= part.From:
			continue
		case f.Waiting >= 0:
			f.Waiting += end - part.From
		}
		s, was := before[at]
		if !was || s.from != part.From {
			s = stand{part.From, now}
		}
		stands[at] = s
		f.Stands = max(f.Stands, now.Sub(s.since))
	}
	return f, stands
}

// rates compares the counts with those of ratesOver ago.
func (p *past) rates(m *Movement, c counts) {
	for len(p.counts) > 1 && c.at.Sub(p.counts[1].at) >= ratesOver {
		p.counts = p.counts[1:]
	}
	if len(p.counts) == 0 || c.at.Sub(p.counts[len(p.counts)-1].at) >= SampleEvery-time.Second {
		defer func() { p.counts = append(p.counts, c) }()
	}
	if len(p.counts) == 0 {
		return
	}
	last := p.counts[0]
	seconds := c.at.Sub(last.at).Seconds()
	if seconds < (SampleEvery - time.Second).Seconds() {
		return
	}
	rate := func(n int64) float64 { return max(float64(n)/seconds, 0) }
	if m.State.Outbox != nil {
		m.Now.Of[In] = rate(c.lastID - last.lastID)
		if !c.capped && !last.capped {
			m.Now.Of[Out] = rate(c.lastID - last.lastID - (c.waiting - last.waiting))
		}
	}
	sum, known := 0.0, false
	for name, f := range m.Flows {
		if before, ok := last.decided[name]; ok {
			f.Decided = rate(c.decided[name] - before)
			m.Flows[name] = f
			sum, known = sum+f.Decided, true
		}
	}
	if known {
		m.Now.Of[Decided] = sum
	}
}

// keep appends a point if the last one is old enough. Of the points older than an hour it keeps the highest figures.
func (p *past) keep(now Point) {
	n := len(p.points)
	if n > 0 && now.At.Sub(p.points[n-1].At) < SampleEvery-time.Second {
		return
	}
	p.points = append(p.points, now)
	for len(p.points) > 0 && now.At.Sub(p.points[0].At) > format.Day {
		p.points = p.points[1:]
	}
	// One point a look becomes older than an hour.
	for i := 1; i < len(p.points) && now.At.Sub(p.points[i].At) > format.Hour; i++ {
		if p.points[i].At.Sub(p.points[i-1].At) >= olderEvery {
			continue
		}
		for k, v := range p.points[i].Of {
			p.points[i-1].Of[k] = max(p.points[i-1].Of[k], v)
		}
		p.points = append(p.points[:i], p.points[i+1:]...)
		i--
	}
}

// Past returns the points of a window that ends now.
func (d *Database) Past(window time.Duration) (list []Point) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.past.points {
		if time.Since(p.At) <= window {
			list = append(list, p)
		}
	}
	return list
}
