package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	nameTable = "relay that polls"
	nameWAL   = "relay that reads the WAL"

	latencyRate    = 1000 // events a second
	latencyWriters = 16   // connections that append; two or three of them are at work at a time
	latencyWarm    = 1500 * time.Millisecond
)

// latencyCase measures the time from the moment at which a transaction with one event is due until a consumer has the
// event. The schedule is fixed in advance, so a stall counts for every event that was due in it.
func latencyCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("latency", fmt.Sprintf("%d transactions per second with one event of %d bytes each; every event has "+
		"its own key. The latency is from the time at which an event is due until a waiting fetch returns it. A "+
		"turn takes %v", latencyRate, payloadSize, o.latency))
	payload := payloads(distinct)
	for turn := range o.repeats + 1 {
		for _, name := range []string{nameTable, nameWAL} {
			var f figure
			err := s.withWAL(ctx, name == nameWAL, func() (err error) {
				f, err = s.latencyOnce(ctx, o, name == nameWAL, payload)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			f.Case, f.Name, f.Turn = "latency", name, turn
			rep.add(f)
		}
	}
	p50, p99 := func(f figure) float64 { return f.P50 }, func(f figure) float64 { return f.P99 }
	rep.atMost("latency", nameTable+", p50, ms", 20, rep.pick("latency", nameTable, p50))
	rep.atMost("latency", nameTable+", p99, ms", 50, rep.pick("latency", nameTable, p99))
	rep.atMost("latency", nameWAL+", p50, ms", 5, rep.pick("latency", nameWAL, p50))
	return nil
}

func (s *stack) latencyOnce(ctx context.Context, o options, wal bool, payload [][]byte) (f figure, err error) {
	topic, drop, err := s.topic(ctx)
	if err != nil {
		return f, err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox, queryVacuumOutbox); err != nil {
		return f, err
	}
	relays, stop, err := s.background(1, job{Topic: topic, Pumps: o.pumps, WAL: wal})
	if err != nil {
		return f, err
	}
	defer stop()
	if err := s.awaitRelays(ctx, 1, wal); err != nil {
		return f, err
	}
	warm := int(latencyWarm.Seconds() * latencyRate)
	n := warm + int(o.latency.Seconds()*latencyRate)
	p := &paced{topic: topic, payload: payload, epoch: time.Now(), n: n}
	observed := newArrivals(p.epoch, n)
	following, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := make(chan error, 1)
	go func() { followed <- observed.follow(following, s.brokers, topic) }()
	before := serverCPU()
	if err := p.run(ctx, s.pg.URL()); err != nil {
		return f, err
	}
	select {
	case <-observed.all:
	case err := <-followed:
		return f, errors.Join(errors.New("the consumer ended"), err)
	case <-time.After(time.Minute):
		return f, fmt.Errorf("%d of %d events did not arrive", observed.left.Load(), n)
	case <-ctx.Done():
		return f, ctx.Err()
	}
	used := serverCPU().minus(before)
	a, err := relays[0].end()
	cancel()
	times, last := observed.latencies(p.due, warm)
	seconds := (last - p.due(warm)).Seconds()
	per := 1e6 / float64(n)
	return figure{
		Events: n - warm, Seconds: seconds, Rate: float64(n-warm) / seconds, PeakKiB: a.PeakKiB, CPU: a.Client * per,
		PostgresCPU: used.postgres * per, KafkaCPU: used.kafka * per,
		P50: milliseconds(percentile(times, 0.5)), P99: milliseconds(percentile(times, 0.99)),
	}, errors.Join(err, <-followed)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
