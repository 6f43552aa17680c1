package consumer

import "time"

// Status describes the current state of a consumer.
type Status struct {
	// Joined reports whether this member is in the group. A member without partitions is a healthy standby.
	Joined bool `json:"joined"`
	// OutSince is since when this member has not been in the group. It is zero while it is in it, and before Run.
	OutSince time.Time `json:"out_since,omitzero"`
	// Missing are the topics that cannot be read, and of which nothing is consumed: they do not exist, their names are
	// misspelt, or the user may not read them.
	Missing []string `json:"missing,omitempty"`
	// Generation counts the group's rebalances. It is zero when the member has not joined.
	Generation int32 `json:"generation"`
	// Partitions are the assigned partitions.
	Partitions []PartitionStatus `json:"partitions"`
	// Down reports whether Kafka, or a part of it, is unusable. DownSince is when the outage began.
	Down      bool      `json:"down"`
	DownSince time.Time `json:"down_since,omitzero"`
	// StalledSince is when this process last decided an event, or when records of its partitions began to wait,
	// whichever is later. A rebalance does not reset it. A partition whose log end is unknown counts as having records
	// that wait. It is zero if no records wait.
	StalledSince time.Time `json:"stalled_since,omitzero"`
	// LastError is the last error of Kafka, even if the outage is over. It is empty if there was none.
	LastError string `json:"last_error,omitempty"`
}

// PartitionStatus describes the progress of a partition.
type PartitionStatus struct {
	Partition
	// Next is the first undecided offset, or -1 if it is not known yet.
	Next int64 `json:"next"`
	// High is the end of the partition's log, or -1 if it is not known yet. It is at most some seconds old while Kafka
	// answers.
	High int64 `json:"high"`
	// Lag is the number of offsets from Next to High, or -1 if it is not known yet.
	Lag int64 `json:"lag"`
	// HandlingSince is when the handler got its current batch. It is zero if the handler has none.
	HandlingSince time.Time `json:"handling_since,omitzero"`
	// Halted is set when the partition stopped and needs an operator. Reason is its error as text.
	Halted *Halt  `json:"halted,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Halted returns the partitions that stopped and need an operator.
func (s Status) Halted() []Halt {
	var halted []Halt
	for _, p := range s.Partitions {
		if p.Halted != nil {
			halted = append(halted, *p.Halted)
		}
	}
	return halted
}

// Status returns the current state of the consumer. It may be called at any time, from any goroutine.
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
	m, out := c.member, c.outSince
	s.Missing = c.missing
	c.mu.Unlock()
	if m == nil || !m.isJoined() {
		s.OutSince = out
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
