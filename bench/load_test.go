package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/iotest"
)

func TestInParallel(t *testing.T) {
	t.Parallel()
	var sum atomic.Int64
	err := inParallel(t.Context(), 3, 1005, 10, func(_ context.Context, n int) error {
		if n > 10 {
			t.Errorf("a part of %d", n)
		}
		sum.Add(int64(n))
		return nil
	})
	if err != nil || sum.Load() != 1005 {
		t.Errorf("%d of 1005 were done: %v", sum.Load(), err)
	}
	calls := 0
	err = inParallel(t.Context(), 1, 1005, 10, func(context.Context, int) error { calls++; return iotest.ErrTimeout })
	if !errors.Is(err, iotest.ErrTimeout) || calls != 1 {
		t.Errorf("%d calls and %v, want one and its error", calls, err)
	}
}
