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

// standstill measures since when nothing was decided although records wait. Rebalances do not reset it.
type standstill struct {
	mu      sync.Mutex
	waiting map[Partition]bool // whether it has records that are not decided, or nobody knows yet
	since   time.Time          // zero: nothing waits
}

// assigned replaces the partitions; of the new ones nobody knows yet.
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

// update notes whether records of a partition wait, and whether some were decided just now.
func (s *standstill) update(p Partition, waits, decided bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ours := s.waiting[p]; ours { // else it is given up, and its handler still ends
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

// watchEnds looks at the ends of logs that are not fetched, because a handler is busy or a partition is halted, until
// ctx ends. Otherwise their lag would stay at what it was when the fetching stopped.
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
			continue // the heartbeats report it
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
