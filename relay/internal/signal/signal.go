// Package signal lets the actors of a relay tell one another that there is something to do.
package signal

// Signals are what the actors listen to. A signal that is given twice before it is heard is heard once, and giving one
// never blocks.
type Signals struct {
	Wakes  chan struct{}   // the prober, and a sleeping relay
	Probes chan struct{}   // the prober: what the relay tells itself ends no sleep
	Beats  chan struct{}   // the keeper
	Kicks  []chan struct{} // the pumps
}

// New makes the signals of a relay with so many pumps.
func New(pumps int) *Signals {
	s := &Signals{Wakes: make(chan struct{}, 1), Probes: make(chan struct{}, 1), Beats: make(chan struct{}, 1)}
	for range pumps {
		s.Kicks = append(s.Kicks, make(chan struct{}, 1))
	}
	return s
}

// Wake tells the prober, or a sleeping relay, that something was appended.
func (s *Signals) Wake() { give(s.Wakes) }

// Probe makes the prober probe at once.
func (s *Signals) Probe() { give(s.Probes) }

// Beat asks for a heartbeat now.
func (s *Signals) Beat() { give(s.Beats) }

// Kick tells the pumps that lanes are ready.
func (s *Signals) Kick() {
	for _, kick := range s.Kicks {
		give(kick)
	}
}

func give(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
