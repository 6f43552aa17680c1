package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// mark is an offset to commit: a partition's next one, and the metadata that Kafka keeps with it.
type mark struct {
	next     int64
	metadata string
}

// offsets are the marks of partitions.
type offsets map[Partition]mark

// A commit whose answer was lost may stand in a socket or a queue and be handled after a newer one, over another
// connection: the group's offset then goes back, and nothing advances it on a quiet topic. So the newest offset is
// committed again, every lateEvery, until no commit can be that late.
const (
	lateEvery = 10 * time.Second
	lateFor   = time.Minute
)

// committer commits the decided offsets of a member's partitions in its generation. The broker refuses commits of an
// ended generation, so a late commit cannot advance the offset of a partition that another member reads.
type committer struct {
	send     func(offsets) error
	every    time.Duration // negative: after each batch
	fenced   func(error)   // called when the broker refuses the generation
	observer *Observer

	flushing sync.Mutex // one commit at a time, so that an older one is not sent last
	mu       sync.Mutex
	dirty    offsets
	newest   offsets                 // what was decided last
	unsure   map[Partition]time.Time // a commit without an answer may be handled until then
	again    time.Time               // when the unsure ones were last committed again
}

// decided marks the offset next of p for commit. It ignores a partition that was given up, because its next owner
// commits.
func (c *committer) decided(p *partition, next int64, metadata string) {
	c.mu.Lock()
	if !p.released {
		if c.dirty == nil {
			c.dirty = offsets{}
		}
		if c.newest == nil {
			c.newest = offsets{}
		}
		c.newest[p.Partition] = mark{next, metadata}
		c.dirty[p.Partition] = c.newest[p.Partition]
	}
	c.mu.Unlock()
	if c.every < 0 {
		_ = c.flush(false)
	}
}

// run flushes at intervals until ctx ends. Failed offsets stay dirty for the next flush.
func (c *committer) run(ctx context.Context) {
	every := c.every
	if every < 0 {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = c.flush(false)
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
		delete(c.dirty, r.Partition)
		delete(c.newest, r.Partition)
		delete(c.unsure, r.Partition)
	}
}

// flushLast flushes before partitions are given up. It tries twice: a lost commit costs only duplicates.
func (c *committer) flushLast() error {
	err := c.flush(true)
	if err != nil && !isFenced(err) {
		err = c.flush(true)
	}
	return err
}

// flush commits what is dirty, and what may have gone back: last does not wait until that is due.
func (c *committer) flush(last bool) error {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	batch := c.take(last)
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
		for p, m := range batch {
			c.observer.Committed(CommittedInfo{Partition: p, Offset: m.next})
		}
	}
	return nil
}

// take returns the marks to commit now.
func (c *committer) take(last bool) offsets {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := c.dirty
	c.dirty = nil
	now := time.Now()
	if len(c.unsure) == 0 || !last && now.Sub(c.again) < lateEvery {
		return batch
	}
	c.again = now
	if batch == nil {
		batch = offsets{}
	}
	for p, until := range c.unsure {
		batch[p] = c.newest[p]
		if now.After(until) {
			delete(c.unsure, p)
		}
	}
	return batch
}

// putBack marks offsets dirty again, unless a newer offset was decided meanwhile.
func (c *committer) putBack(batch offsets) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dirty == nil {
		c.dirty = offsets{}
	}
	if len(c.unsure) == 0 {
		c.unsure, c.again = map[Partition]time.Time{}, time.Now()
	}
	for p := range batch {
		c.dirty[p] = c.newest[p]
		c.unsure[p] = time.Now().Add(lateFor)
	}
}

// isFenced reports whether the broker refused the member or its generation.
func isFenced(err error) bool {
	return errors.Is(err, kafka.IllegalGeneration) || errors.Is(err, kafka.UnknownMemberId) ||
		errors.Is(err, kafka.FencedInstanceID)
}
