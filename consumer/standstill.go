package consumer

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/sleep"
)

// standstill records since when nothing was decided although records wait. Rebalances do not reset it.
type standstill struct {
	mu      sync.Mutex
	waiting map[Partition]bool // whether the partition has undecided records; true while unknown
	since   time.Time          // zero: no records wait
}

// assigned replaces the partitions. The state of the added ones is unknown.
func (s *standstill) assigned(partitions, added []Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.waiting
	s.waiting = map[Partition]bool{}
	for _, p := range partitions {
		s.waiting[p] = before[p] || slices.Contains(added, p)
	}
	s.clock(false)
}

// update records whether records of a partition wait, and whether some were decided just now.
func (s *standstill) update(p Partition, waits, decided bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ours := s.waiting[p]; ours { // otherwise the partition is given up and its handler still runs
		s.waiting[p] = waits
	}
	s.clock(decided)
}

func (s *standstill) clock(decided bool) {
	switch {
	case !slices.Contains(slices.Collect(maps.Values(s.waiting)), true):
		s.since = time.Time{}
	case decided || s.since.IsZero():
		s.since = time.Now()
	}
}

func (s *standstill) began() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since
}

// watchEnds queries the ends of logs that are not fetched, because a handler is busy or a partition is halted, until
// ctx ends. Without it, their lag would not change after the last fetch.
func (s *session) watchEnds(ctx context.Context) {
	every := s.c.cfg.ResumeEvery
	for {
		_ = sleep.For(ctx, every)
		if ctx.Err() != nil {
			return
		}
		old := map[Partition]*partition{}
		ask := map[string][]kafka.OffsetRequest{}
		for _, p := range s.all() {
			if p.endIsOlder(s.c.cfg.FetchWait + every) {
				old[p.Partition] = p.partition
				ask[p.Topic] = append(ask[p.Topic], kafka.LastOffsetOf(int(p.ID)))
			}
		}
		if len(old) == 0 {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, 2*netTimeout)
		res, err := s.c.client.kafka().ListOffsets(asking, &kafka.ListOffsetsRequest{Topics: ask})
		cancel()
		if err != nil {
			continue // heartbeats report the outage
		}
		for topic, ends := range res.Topics {
			for _, end := range ends {
				if p := old[Partition{topic, int32(end.Partition)}]; p != nil && end.Error == nil {
					p.setEnd(end.LastOffset)
				}
			}
		}
	}
}
