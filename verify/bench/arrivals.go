package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// arrivals notes when each of n events, whose key is its number, was first seen in a topic. One request at a time
// fetches at least one byte from all partitions, so the broker answers at once: no queue, group or pause of a reader
// adds latency.
type arrivals struct {
	epoch time.Time
	at    []atomic.Int64 // nanoseconds after epoch; 0: not seen
	left  atomic.Int64
	all   chan struct{} // closed when none is left
}

func newArrivals(epoch time.Time, n int) *arrivals {
	a := &arrivals{epoch: epoch, at: make([]atomic.Int64, n), all: make(chan struct{})}
	a.left.Store(int64(n))
	return a
}

// follow reads all partitions until ctx ends, or until one fails.
func (a *arrivals) follow(ctx context.Context, brokers []string, topic string) error {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	var next [partitions]int64
	for ctx.Err() == nil {
		res, err := transport.RoundTrip(ctx, kafka.TCP(brokers...), fetchAll(topic, next))
		now := time.Since(a.epoch)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("fetch: %w", err)
		}
		for _, t := range res.(*fetch.Response).Topics {
			for i := range t.Partitions {
				p := &t.Partitions[i]
				switch code := kafka.Error(p.ErrorCode); {
				case code.Temporary(): // the topic is new
					_ = pause(ctx, 10*time.Millisecond)
				case code != 0:
					return fmt.Errorf("fetch partition %d: %w", p.Partition, code)
				case p.RecordSet.Records != nil:
					if next[p.Partition], err = a.note(p.RecordSet.Records, next[p.Partition], now); err != nil {
						return fmt.Errorf("read partition %d: %w", p.Partition, err)
					}
				}
			}
		}
	}
	return nil
}

func fetchAll(topic string, next [partitions]int64) *fetch.Request {
	r := &fetch.Request{
		ReplicaID: -1, MaxWaitTime: 1000, MinBytes: 1, MaxBytes: 16 << 20, SessionID: -1,
		SessionEpoch: -1,
	}
	ask := fetch.RequestTopic{Topic: topic}
	for p, offset := range next {
		ask.Partitions = append(ask.Partitions, fetch.RequestPartition{
			Partition: int32(p), CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1,
			PartitionMaxBytes: 1 << 20,
		})
	}
	r.Topics = []fetch.RequestTopic{ask}
	return r
}

// note notes the records of a fetch, and returns the next offset.
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
		if rec.Offset < next { // a batch may start below the offset of the fetch
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

// percentile returns the smallest of the sorted values that a share p of them does not exceed.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(p*float64(len(sorted))+0.999999)-1, 0)]
}

// latencies returns the sorted times from when events were due until they were seen, from event first on, and when the
// last was seen.
func (a *arrivals) latencies(due func(i int) time.Duration, first int) (sorted []time.Duration, last time.Duration) {
	for i := first; i < len(a.at); i++ {
		at := time.Duration(a.at[i].Load())
		sorted, last = append(sorted, at-due(i)), max(last, at)
	}
	slices.Sort(sorted)
	return sorted, last
}
