package consumer

import "time"

// Status is what a consumer is doing now.
type Status struct {
	// Joined is whether this member is in the group now. A member without partitions is a standby, and well.
	Joined bool `json:"joined"`
	// Generation counts the group's rebalances. Zero when not joined.
	Generation int32 `json:"generation"`
	// Partitions are the assigned ones.
	Partitions []PartitionStatus `json:"partitions"`
	// Down is whether Kafka, or a part of it, cannot be used now; DownSince is since when.
	Down      bool      `json:"down"`
	DownSince time.Time `json:"down_since,omitzero"`
	// StalledSince is when this process last decided something or, when that is later, when records of its partitions
	// began to wait. A rebalance does not set it back. Where the end of a log is not known yet, records are taken to
	// wait. Zero: none do.
	StalledSince time.Time `json:"stalled_since,omitzero"`
	// LastError is the last trouble with Kafka, also when it is over. Empty: there was none.
	LastError string `json:"last_error,omitempty"`
}

// PartitionStatus is how far a partition is.
type PartitionStatus struct {
	Partition
	// Next is the first offset that is not decided. -1: not known yet.
	Next int64 `json:"next"`
	// High is the end of the partition's log, as of the last look, which is seconds ago at most while Kafka answers.
	// -1: not known yet.
	High int64 `json:"high"`
	// Lag is how many offsets are between the two. -1: not known yet.
	Lag int64 `json:"lag"`
	// HandlingSince is since when the handler has had the batch that it has now. Zero: it has none.
	HandlingSince time.Time `json:"handling_since,omitzero"`
	// Halted is set when the partition stopped until somebody acts, with Reason as text.
	Halted *Halt  `json:"halted,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Halted returns the partitions that stopped until somebody acts.
func (s Status) Halted() []Halt {
	var halted []Halt
	for _, p := range s.Partitions {
		if p.Halted != nil {
			halted = append(halted, *p.Halted)
		}
	}
	return halted
}

// Status returns what the consumer is doing now. It may be called at any time, from any goroutine.
func (c *Consumer) Status() Status {
	var s Status
	var err error
	if s.Down, s.DownSince, err = c.outage.state(); err != nil {
		s.LastError = err.Error()
	}
	if !s.Down {
		s.DownSince = time.Time{}
	}
	s.StalledSince = c.standstill.began()
	c.mu.Lock()
	m := c.member
	c.mu.Unlock()
	if m == nil || !m.isJoined() {
		return s
	}
	s.Joined, s.Generation = true, m.generation()
	for _, p := range m.all() {
		s.Partitions = append(s.Partitions, p.status())
	}
	return s
}

func (p *partition) status() PartitionStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PartitionStatus{
		Partition: p.Partition, Next: p.next, High: p.high, Lag: -1, HandlingSince: p.handling,
		Halted: p.halted,
	}
	if p.next >= 0 && p.high >= 0 {
		s.Lag = max(0, p.high-p.next)
	}
	if p.halted != nil {
		s.Reason = p.halted.Err.Error()
	}
	return s
}
