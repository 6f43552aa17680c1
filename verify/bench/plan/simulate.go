package plan

import (
	"math"
	"math/rand/v2"
	"slices"
)

// The defaults of relay.Config and consumer.Config.
const (
	claimEvents = 8000
	inboxBatch  = 500
	probeEvery  = 0.018 // seconds between two looks of a relay
	gatherFor   = 0.005 // seconds that a consumer waits for a fuller batch
)

// Load is the input of a simulation.
type Load struct {
	Rate       float64 // events a second
	PerAppend  int     // events of one transaction of a producer
	Producers  int
	Seconds    float64 // measured, after a second of running in; with Waiting, the most that it may take
	Cores      float64
	Pumps      int
	Partitions int
	Waiting    int // events that wait in the outbox at the start
}

// Outcome is its result: CPU in cores, latencies in milliseconds from the start of an event's append.
type Outcome struct {
	Rate                    float64 // events a second that took effect
	Client, Postgres, Kafka float64
	Publish50, Publish99    float64 // until Kafka has acked
	Apply50, Apply99        float64 // until the effect is committed
}

// Simulate runs the chain event by event: producers append, pumps claim, publish and settle, consumers gather and
// handle. Every step occupies a core for its cost, and then waits. Runnable steps share the cores fairly, after the
// cost of the idle chain is subtracted.
func Simulate(c Costs, l Load) Outcome {
	s := &chain{Costs: c, Load: l, rng: rand.New(rand.NewPCG(1, 2)), from: 1}
	s.cores = max(l.Cores-c.Idle.Seconds(), 0.05)
	s.queues = make([][]float64, l.Pumps)
	s.pumping = make([]bool, l.Pumps)
	s.partitions = make([]partition, l.Partitions)
	if l.Waiting > 0 {
		s.from = 0
	}
	for i := range l.Waiting {
		s.queues[i%l.Pumps] = append(s.queues[i%l.Pumps], 0)
	}
	if l.Rate > 0 {
		period := float64(l.PerAppend*l.Producers) / l.Rate
		for p := range l.Producers {
			s.append(period*float64(p)/float64(l.Producers), period)
		}
	}
	s.probe()
	s.run(s.from + l.Seconds)
	if l.Waiting > 0 && s.last > 0 {
		l.Seconds = s.last
	}
	second := c.Idle.plus(s.used, 1/l.Seconds)
	out := Outcome{
		Rate:   float64(s.applied) / l.Seconds,
		Client: second.Client * 1e-6, Postgres: second.Postgres * 1e-6, Kafka: second.Kafka * 1e-6,
	}
	out.Publish50, out.Publish99 = quantiles(s.published)
	out.Apply50, out.Apply99 = quantiles(s.handled)
	return out
}

// chain is the state of a simulation.
type chain struct {
	Costs
	Load
	machine
	rng        *rand.Rand
	from       float64 // what is before it is not measured
	used       Cost
	applied    int
	last       float64     // when the last effect was committed
	queues     [][]float64 // by pump: when each waiting event was appended
	pumping    []bool
	partitions []partition
	published  []float64 // latencies, seconds
	handled    []float64
}

// partition is a partition with its consumer.
type partition struct {
	chunks [][]float64 // fetched, by the begin of each event's append
	busy   bool
}

func (p *partition) events() (n int) {
	for _, c := range p.chunks {
		n += len(c)
	}
	return n
}

// spend occupies a core for cost, waits, and calls do.
func (s *chain) spend(cost Cost, waitMS float64, do func()) {
	if s.now >= s.from {
		s.used = s.used.plus(cost, 1)
	}
	s.work(cost.Seconds(), func() { s.after(waitMS*1e-3, do) })
}

// append is one producer with a transaction per period, late if the previous one has taken too long.
func (s *chain) append(due, period float64) {
	s.after(max(due-s.now, 0), func() {
		began := s.now
		s.spend(s.Append.Of(float64(s.PerAppend)), s.Waits.Append, func() {
			for range s.PerAppend {
				p := s.rng.IntN(s.Pumps)
				s.queues[p] = append(s.queues[p], began)
			}
			s.append(due+period, period)
		})
	})
}

// probe polls for events and wakes the pumps that have some.
func (s *chain) probe() {
	for p := range s.queues {
		if !s.pumping[p] {
			s.pump(p)
		}
	}
	s.after(probeEvery, s.probe)
}

func (s *chain) pump(p int) {
	n := min(len(s.queues[p]), claimEvents)
	if s.pumping[p] = n > 0; n == 0 {
		return
	}
	events := slices.Clone(s.queues[p][:n])
	s.queues[p] = s.queues[p][n:]
	all := Cost{}.plus(s.relayed(float64(n), s.Partitions), float64(n))
	claim := Cost{Postgres: all.Postgres * s.ClaimShare}
	publish := Cost{Client: all.Client, Kafka: all.Kafka}
	settle := Cost{Postgres: all.Postgres * (1 - s.ClaimShare)}
	s.spend(claim, s.Waits.Claim, func() {
		s.spend(publish, s.Waits.Publish, func() {
			s.deliver(events)
			s.spend(settle, s.Waits.Settle, func() {
				if s.pumping[p] = false; n == claimEvents {
					s.pump(p)
				}
			})
		})
	})
}

// deliver distributes a claim over the partitions, with one record batch for each.
func (s *chain) deliver(events []float64) {
	chunks := make([][]float64, s.Partitions)
	for _, began := range events {
		if s.now >= s.from {
			s.published = append(s.published, s.now-began)
		}
		i := s.rng.IntN(s.Partitions)
		chunks[i] = append(chunks[i], began)
	}
	for i, c := range chunks {
		if len(c) > 0 {
			p := &s.partitions[i]
			if p.chunks = append(p.chunks, c); !p.busy {
				p.busy = true
				s.spend(s.Fetch.Batch, 0, func() { s.gather(p) })
			} else {
				s.spend(s.Fetch.Batch, 0, func() {})
			}
		}
	}
}

// gather waits for a full batch, at most gatherFor.
func (s *chain) gather(p *partition) {
	if p.events() >= inboxBatch {
		s.handle(p)
		return
	}
	s.after(gatherFor, func() { s.handle(p) })
}

func (s *chain) handle(p *partition) {
	var batch []float64
	for len(p.chunks) > 0 && len(batch) < inboxBatch {
		n := min(len(p.chunks[0]), inboxBatch-len(batch))
		batch = append(batch, p.chunks[0][:n]...)
		if p.chunks[0] = p.chunks[0][n:]; len(p.chunks[0]) == 0 {
			p.chunks = p.chunks[1:]
		}
	}
	s.spend(s.Inbox.Of(float64(len(batch))), s.Waits.Handle, func() {
		if s.now >= s.from {
			s.applied += len(batch)
			s.last = s.now
			for _, began := range batch {
				s.handled = append(s.handled, s.now-began)
			}
		}
		if p.busy = len(p.chunks) > 0; p.busy {
			s.gather(p)
		}
	})
}

// machine is time and cores.
type machine struct {
	now    float64
	cores  float64
	tasks  []*task
	timers []timer // sorted
}

// task needs a core for some more seconds.
type task struct {
	left float64
	do   func()
}

func (m *machine) work(seconds float64, do func()) {
	m.tasks = append(m.tasks, &task{seconds, do})
}

// after calls do later; timers of the same time run in the order in which they were set.
func (m *machine) after(seconds float64, do func()) {
	at := m.now + seconds
	i, _ := slices.BinarySearchFunc(m.timers, at, func(t timer, at float64) int {
		if t.at <= at {
			return -1
		}
		return 1
	})
	m.timers = slices.Insert(m.timers, i, timer{at, do})
}

// run simulates until a time, or until no timer or task is left.
func (m *machine) run(until float64) {
	for {
		pace := min(1, m.cores/float64(max(len(m.tasks), 1)))
		next, at := -1, math.Inf(1)
		for i, t := range m.tasks {
			if done := m.now + t.left/pace; done < at {
				next, at = i, done
			}
		}
		isTimer := len(m.timers) > 0 && m.timers[0].at <= at
		if isTimer {
			at = m.timers[0].at
		}
		if at > until {
			return
		}
		for _, t := range m.tasks {
			t.left = max(t.left-(at-m.now)*pace, 0)
		}
		m.now = at
		if isTimer {
			first := m.timers[0]
			m.timers = m.timers[1:]
			first.do()
			continue
		}
		t := m.tasks[next]
		m.tasks = slices.Delete(m.tasks, next, next+1)
		t.do()
	}
}

// timer is a call at a time.
type timer struct {
	at float64
	do func()
}

// quantiles returns the median and the 99th percentile of seconds, in milliseconds.
func quantiles(all []float64) (p50, p99 float64) {
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	at := func(q float64) float64 { return all[min(int(q*float64(len(all))), len(all)-1)] * 1e3 }
	return at(0.5), at(0.99)
}
