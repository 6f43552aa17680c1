package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
)

// arrivals notes when each of n events, whose key is its number, was first seen in a topic. It asks each partition for what
// comes next (Client.Fetch, at least one byte), so the broker answers as soon as there is something: no queue, no group and
// no pause of a reader stands in between.
type arrivals struct {
	epoch time.Time
	at    []atomic.Int64 // nanoseconds after epoch; 0: not yet
	left  atomic.Int64
	all   chan struct{} // closed when none is left
}

func newArrivals(epoch time.Time, n int) *arrivals {
	a := &arrivals{epoch: epoch, at: make([]atomic.Int64, n), all: make(chan struct{})}
	a.left.Store(int64(n))
	return a
}

// follow reads all partitions until ctx ends, or until one fails.
func (a *arrivals) follow(ctx context.Context, client *kafka.Client, topic string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, partitions)
	var wg sync.WaitGroup
	for p := range partitions {
		wg.Go(func() {
			if errs[p] = a.partition(ctx, client, topic, p); errs[p] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (a *arrivals) partition(ctx context.Context, client *kafka.Client, topic string, p int) error {
	var next int64
	for ctx.Err() == nil {
		res, err := client.Fetch(ctx, &kafka.FetchRequest{Topic: topic, Partition: p, Offset: next, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: time.Second})
		if err == nil {
			err = res.Error
		}
		var code kafka.Error
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &code) && code.Temporary(): // the topic is new
			_ = pause(ctx, 10*time.Millisecond)
			continue
		case err != nil:
			return fmt.Errorf("fetch partition %d: %w", p, err)
		}
		if next, err = a.note(res.Records, next, time.Since(a.epoch)); err != nil {
			return fmt.Errorf("read partition %d: %w", p, err)
		}
	}
	return nil
}

// note takes what was fetched at a moment, and returns the offset to go on from.
func (a *arrivals) note(records kafka.RecordReader, next int64, now time.Duration) (int64, error) {
	for {
		rec, err := records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return next, nil
		}
		if err != nil {
			return next, err
		}
		key, err := kafka.ReadAll(rec.Key)
		if err != nil {
			return next, err
		}
		if rec.Offset < next { // a batch may begin before what was asked for
			continue
		}
		next = rec.Offset + 1
		i, err := strconv.Atoi(string(key))
		if err != nil || i < 0 || i >= len(a.at) {
			return next, fmt.Errorf("a record of somebody else: key %q", key)
		}
		if a.at[i].CompareAndSwap(0, int64(now)) && a.left.Add(-1) == 0 {
			close(a.all)
		}
	}
}

// percentile of sorted values: the smallest that p of them (0 to 1) do not exceed.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(p*float64(len(sorted))+0.999999)-1, 0)]
}

// latencies sorts the times between two moments of the events from a number on.
func latencies(from, to []time.Duration, first int) []time.Duration {
	out := make([]time.Duration, 0, len(to)-first)
	for i := first; i < len(to); i++ {
		out = append(out, to[i]-from[i])
	}
	slices.Sort(out)
	return out
}
