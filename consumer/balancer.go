package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
)

// assignAgain is the pause before partitions are assigned again that nobody could see; it doubles up to assignSeldom while that lasts.
const (
	assignAgain  = time.Second
	assignSeldom = 30 * time.Second
)

// balancer is one of kafka-go's that notices when partitions are missing. The leader of a group asks for those of all topics at once, and gets
// none of any while one topic does not exist: somebody deletes it and makes it again. Then nobody is assigned anything. kafka-go begins a
// moment later to look whether the numbers of partitions change: they do not, if the topic came in between.
type balancer struct {
	kafka.GroupBalancer
	c *Consumer
}

// balancers are the ones that kafka-go takes by itself.
func (c *Consumer) balancers() []kafka.GroupBalancer {
	return []kafka.GroupBalancer{balancer{kafka.RangeGroupBalancer{}, c}, balancer{kafka.RoundRobinGroupBalancer{}, c}}
}

// AssignGroups implements [kafka.GroupBalancer].
func (b balancer) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	if b.c.seen != nil {
		partitions = b.c.seen(partitions)
	}
	b.c.partial.Store(slices.ContainsFunc(b.c.topics, func(topic string) bool {
		return !slices.ContainsFunc(partitions, func(p kafka.Partition) bool { return p.Topic == topic })
	}))
	return b.GroupBalancer.AssignGroups(members, partitions)
}

// again ends a generation soon whose partitions this process has assigned without those of a topic.
func (c *Consumer) again(gen *kafka.Generation) {
	if !c.partial.Swap(false) {
		c.pause = 0
		return
	}
	c.pause = min(max(2*c.pause, assignAgain), assignSeldom)
	pause := c.pause
	c.cfg.Logger.Warn("a topic could not be seen when partitions were assigned: they are assigned again", "generation", gen.ID, "after", pause)
	gen.Start(func(ended context.Context) { sleep(ended, pause) }) // its end is the generation's
}
