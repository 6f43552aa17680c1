package consumer

import (
	"context"
	"sync"
	"sync/atomic"
)

// minFetchBytes is the minimum size that a fetch requests.
const minFetchBytes = 16 << 10

// budget bounds the memory that a member's partitions hold ahead of their handlers. A partition that holds nothing may
// always fetch, so partitions with slow handlers cannot starve the others. Only reading ahead waits for room. The bound
// is therefore the larger of the limit and one fetch per partition.
type budget struct {
	limit      int64
	partitions atomic.Int64

	mu    sync.Mutex
	used  int64
	freed chan struct{} // closed when memory is released
}

func newBudget(limit int) *budget { return &budget{limit: int64(limit), freed: make(chan struct{})} }

// share returns the size of one fetch. Two such fetches of every partition fit into the limit, unless the size is
// minFetchBytes.
func (b *budget) share(fetchBytes int) int {
	return max(minFetchBytes, min(fetchBytes, int(b.limit/(2*max(1, b.partitions.Load())))))
}

// wait waits until a partition may fetch: there is room, or held returns 0. It returns false if ctx ended.
func (b *budget) wait(ctx context.Context, held func() int64) bool {
	for {
		b.mu.Lock()
		free, freed := b.used < b.limit, b.freed
		b.mu.Unlock()
		if free || held() == 0 {
			return ctx.Err() == nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

// room reports whether partitions may read ahead.
func (b *budget) room() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used < b.limit
}

func (b *budget) add(n int64) {
	b.mu.Lock()
	b.used += n
	b.mu.Unlock()
}

func (b *budget) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	close(b.freed)
	b.freed = make(chan struct{})
}
