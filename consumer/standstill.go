package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/sleep"
)

// standstill measures since when nothing was decided although records wait. Rebalances do not reset it.
type standstill struct {
	mu      sync.Mutex
	waiting map[Partition]bool // those with records that are not decided, or of which nobody knows yet
	since   time.Time          // zero: nothing waits
}

// assigned replaces the partitions.
func (s *standstill) assigned(partitions []Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = map[Partition]bool{}
	for _, p := range partitions {
		s.waiting[p] = true
	}
	s.clock(false)
}

// update notes whether records of a partition wait, and whether some were decided just now.
func (s *standstill) update(p Partition, waits, decided bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if waits {
		s.waiting[p] = true
	} else {
		delete(s.waiting, p)
	}
	s.clock(decided)
}

func (s *standstill) clock(decided bool) {
	switch {
	case len(s.waiting) == 0:
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
func (g *generation) watchEnds(ctx context.Context) {
	every := g.c.cfg.ResumeEvery
	for {
		_ = sleep.For(ctx, every)
		if ctx.Err() != nil {
			return
		}
		old := map[Partition]*partition{}
		ask := map[string][]kafka.OffsetRequest{}
		for _, p := range g.partitions {
			if p.endIsOlder(g.c.cfg.FetchWait + every) {
				old[p.Partition] = p
				ask[p.Topic] = append(ask[p.Topic], kafka.LastOffsetOf(int(p.ID)))
			}
		}
		if len(old) == 0 {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, 2*netTimeout)
		res, err := g.c.client.kafka().ListOffsets(asking, &kafka.ListOffsetsRequest{Topics: ask})
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
