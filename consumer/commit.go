package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// offsets are next offsets by topic and partition, as kafka-go wants them.
type offsets map[string]map[int]int64

func (o *offsets) set(p Partition, next int64) {
	if *o == nil {
		*o = offsets{}
	}
	if (*o)[p.Topic] == nil {
		(*o)[p.Topic] = map[int]int64{}
	}
	(*o)[p.Topic][int(p.ID)] = next
}

// committer commits the decided offsets of the partitions that a member has, through its generation: the broker refuses
// them once that is over, so that a late commit cannot move the offset of a partition that others read now.
type committer struct {
	send     func(map[string]map[int]int64) error
	every    time.Duration // negative: at once
	fenced   func(error)   // called when the broker says that the generation is over
	observer *Observer

	flushing sync.Mutex // one commit at a time, so that an older one cannot overtake
	mu       sync.Mutex
	dirty    offsets
}

// decided notes that everything of p before next is decided. What was given up is others' to commit.
func (c *committer) decided(p *partition, next int64) {
	c.mu.Lock()
	if !p.released {
		c.dirty.set(p.Partition, next)
	}
	c.mu.Unlock()
	if c.every < 0 {
		_ = c.flush()
	}
}

// run flushes now and then until ctx ends.
func (c *committer) run(ctx context.Context) {
	if c.every < 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = c.flush() // what failed stays dirty and goes with the next
		}
	}
}

// release drops what is not committed of partitions that are given up: a later generation may have another owner.
func (c *committer) release(rs []*running) {
	c.flushing.Lock() // one that is under way would put it back
	defer c.flushing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range rs {
		r.released = true
		delete(c.dirty[r.Topic], int(r.ID))
		if len(c.dirty[r.Topic]) == 0 {
			delete(c.dirty, r.Topic)
		}
	}
}

// flushLast flushes before partitions are given up. It tries twice: losing this commit costs nothing but duplicates.
func (c *committer) flushLast() error {
	err := c.flush()
	if err != nil && !isFenced(err) {
		err = c.flush()
	}
	return err
}

func (c *committer) flush() error {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	c.mu.Lock()
	batch := c.dirty
	c.dirty = nil
	c.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := c.send(batch)
	if err != nil {
		c.putBack(batch)
		if isFenced(err) {
			c.fenced(err)
		}
		return err
	}
	if c.observer.Committed != nil {
		for topic, ps := range batch {
			for p, next := range ps {
				c.observer.Committed(Partition{topic, int32(p)}, next)
			}
		}
	}
	return nil
}

// putBack makes offsets dirty again, unless something newer was decided meanwhile.
func (c *committer) putBack(batch offsets) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, ps := range batch {
		for p, next := range ps {
			if _, newer := c.dirty[topic][p]; !newer {
				c.dirty.set(Partition{topic, int32(p)}, next)
			}
		}
	}
}

// isFenced reports whether the broker says that the generation that committed is over.
func isFenced(err error) bool {
	return errors.Is(err, kafka.IllegalGeneration) || errors.Is(err, kafka.UnknownMemberId) ||
		errors.Is(err, kafka.FencedInstanceID)
}
