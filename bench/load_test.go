package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
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

// TestPeaks: the largest process of a kind counts, including the warm-up.
func TestPeaks(t *testing.T) {
	t.Parallel()
	r := report{out: io.Discard}
	for i, mib := range []int64{250, 100, 90} {
		r.add(figure{Case: "c", Name: "relay", Turn: i, PeakKiB: mib << 10})
	}
	r.add(figure{Case: "c", Name: "publish", Turn: 1, PeakKiB: 900 << 10})
	r.peaks("c", "relay", "relay")
	r.peaks("c", "worker", "worker")
	if r.goals[0].Median != 250 || r.goals[0].Met || r.goals[1].Met {
		t.Errorf("got %+v: want 250 MiB, not met, and nothing measured not met either", r.goals)
	}
}

// TestPayment: a payment is JSON of the common size, wherever its filler is cut.
func TestPayment(t *testing.T) {
	t.Parallel()
	filler := payloads(100)
	for i := range 10_000 {
		e := payment("payments", filler[i%len(filler)])
		if len(e.Payload) != payloadSize || !json.Valid(e.Payload) {
			t.Fatalf("%d bytes, want %d of JSON: %s", len(e.Payload), payloadSize, e.Payload)
		}
	}
}
