package consumer

import (
	"context"
	"testing"
	"testing/synctest"
)

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := newBudget(64 << 20)
		b.partitions.Store(100)
		if got := b.share(1 << 20); got > 64<<20/200 || got < minFetchBytes {
			t.Errorf("one of 100 partitions asks for %d bytes", got)
		}
		b.partitions.Store(1)
		if got := b.share(1 << 20); got != 1<<20 {
			t.Errorf("a lone partition asks for %d bytes", got)
		}
		b.add(64 << 20)
		if !b.wait(ctx, func() int64 { return 0 }) {
			t.Error("a partition that holds nothing must not wait for others")
		}
		ahead := make(chan bool, 1)
		go func() { ahead <- b.wait(ctx, func() int64 { return 1 }) }()
		synctest.Wait()
		if len(ahead) != 0 {
			t.Error("read ahead with the budget used up")
		}
		b.release(1)
		if !<-ahead {
			t.Error("no read ahead although the budget has space")
		}
		b.add(1)
		go func() { ahead <- b.wait(ctx, func() int64 { return 1 }) }()
		cancel()
		if <-ahead {
			t.Error("read ahead after the end")
		}
	})
}
