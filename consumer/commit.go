package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// offsets maps topic and partition to the next offset, in kafka-go's type.
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

// committer commits the decided offsets of a member's partitions in its generation. The broker refuses commits of an
// ended generation, so a late commit cannot move the offset of a partition that another member reads.
type committer struct {
	send     func(map[string]map[int]int64) error
	every    time.Duration // negative: after each batch
	fenced   func(error)   // called when the broker refuses the generation
	observer *Observer

	flushing sync.Mutex // one commit at a time, so that an older one cannot arrive last
	mu       sync.Mutex
	dirty    offsets
}

// decided marks the offset next of p for commit. It ignores a partition that was given up, because its next owner
// commits.
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

// run flushes at intervals until ctx ends.
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
			_ = c.flush() // failed offsets stay dirty for the next flush
		}
	}
}

// release drops the uncommitted offsets of partitions that are given up: another member may own them in a later
// generation.
func (c *committer) release(rs []*running) {
	c.flushing.Lock() // a flush in progress could put the offsets back
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

// flushLast flushes before partitions are given up. It tries twice: a lost commit costs only duplicates.
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

// putBack marks offsets dirty again, unless a newer offset was decided meanwhile.
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

// isFenced reports whether the broker refused the member or its generation.
func isFenced(err error) bool {
	return errors.Is(err, kafka.IllegalGeneration) || errors.Is(err, kafka.UnknownMemberId) ||
		errors.Is(err, kafka.FencedInstanceID)
}
