package consumer

import (
	"context"
	"sync"
	"sync/atomic"
)

// minFetchBytes is the least that a fetch asks for.
const minFetchBytes = 16 << 10

// budget bounds what a member's partitions hold ahead of their handlers.
//
// A partition that holds nothing may always fetch, so that partitions whose handlers wait (for a provider, say) can
// never starve the others; reading ahead needs room. The bound is therefore the larger of the limit and one fetch per
// partition.
type budget struct {
	limit      int64
	partitions atomic.Int64

	mu    sync.Mutex
	used  int64
	freed chan struct{} // closed when something was released
}

func newBudget(limit int) *budget { return &budget{limit: int64(limit), freed: make(chan struct{})} }

// share is what one fetch asks for when all partitions hold two each.
func (b *budget) share(fetchBytes int) int {
	return max(minFetchBytes, min(fetchBytes, int(b.limit/(2*max(1, b.partitions.Load())))))
}

// wait returns true once a partition that holds that much may fetch, false when ctx ended.
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

// room reports whether anybody may read ahead.
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
