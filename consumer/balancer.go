package consumer

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/sleep"
)

// sizes are topics that can be read, with their numbers of partitions.
type sizes map[string]int

// balancer is one of kafka-go's that stores the sizes of the topics that it assigned. It asks for the partitions of all
// topics at once and gets none of any while one does not exist, which happens when a topic has just been deleted.
type balancer struct {
	kafka.GroupBalancer
	assigned *atomic.Pointer[sizes]
}

// AssignGroups implements [kafka.GroupBalancer].
func (b balancer) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	saw := sizes{}
	for _, p := range partitions {
		saw[p.Topic]++
	}
	b.assigned.Store(&saw)
	return b.GroupBalancer.AssignGroups(members, partitions)
}

// balancers are the ones that kafka-go takes by itself.
func (s *session) balancers() []kafka.GroupBalancer {
	return []kafka.GroupBalancer{
		balancer{kafka.RangeGroupBalancer{}, &s.assigned}, balancer{kafka.RoundRobinGroupBalancer{}, &s.assigned},
	}
}

// watchTopics returns when topics have come or gone, or have another number of partitions than when they were assigned.
// kafka-go's own ends a generation at once, and again and again, while a topic does not exist.
func (s *session) watchTopics(ctx context.Context) {
	assigned := s.assigned.Swap(nil) // nil: another member assigned, and notices itself what it overlooked
	for {
		_ = sleep.For(ctx, s.c.cfg.HeartbeatInterval)
		if ctx.Err() != nil {
			return
		}
		now, _, err := s.c.client.sizes(ctx, s.c.topics)
		if err != nil {
			continue // the fetches report it
		}
		if !slices.Equal(slices.Sorted(maps.Keys(now)), s.topics) {
			s.changed.Store(true)
			return
		}
		if assigned == nil {
			assigned = &now
		}
		for topic, n := range now {
			if (*assigned)[topic] != n {
				return
			}
		}
	}
}
