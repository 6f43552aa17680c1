package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectonce/effectonce/relay"
)

const (
	namePolling = "relay in a process of its own"
	nameWoken   = "relay embedded, with Wake"
	// fromCommit is the latency from the return of the commit.
	fromCommit = ", from commit"
)

const (
	latencyRate    = 1000 // events a second
	latencyWriters = 16   // connections that append; two or three of them are at work at a time
	latencyWarm    = 1500 * time.Millisecond
)

// latencyCase measures the time from the moment at which a transaction with one event is due until a consumer has the
// event. The schedule is fixed in advance, so a stall counts for every event that was due in it. Then it measures the
// cost of an idle relay.
func latencyCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("latency", fmt.Sprintf("%d transactions per second with one event of %d bytes each; every event has "+
		"its own key. The latency is from the time at which an event is due until a waiting fetch returns it. A "+
		"turn takes %v. The rates of the empty outbox are statements per second", latencyRate, payloadSize,
		o.live.latency))
	payload := payloads(distinct)
	all := map[string][]time.Duration{}
	for turn := range o.repeats + 1 {
		length := o.live.latency
		if turn == 0 {
			length = min(length, 2*time.Second)
		}
		for _, name := range []string{namePolling, nameWoken} {
			m, err := s.latencyOnce(ctx, o, name, length, payload)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for _, one := range []struct {
				name string
				from []time.Duration
			}{{name, m.due}, {name + fromCommit, m.committed}} {
				times := latencies(one.from, m.arrived, m.warm)
				f := m.figure
				f.Case, f.Name, f.Turn = "latency", one.name, turn
				f.P50, f.P99 = milliseconds(percentile(times, 0.5)), milliseconds(percentile(times, 0.99))
				rep.add(f)
				rep.printf("    p50 %.1f, p99 %.1f, max %.1f ms", f.P50, f.P99, milliseconds(times[len(times)-1]))
				if turn > 0 {
					all[one.name] = append(all[one.name], times...)
				}
			}
		}
	}
	for _, name := range []string{namePolling, namePolling + fromCommit, nameWoken, nameWoken + fromCommit} {
		zero := make([]time.Duration, len(all[name]))
		times := latencies(zero, all[name], 0)
		rep.printf("  all turns together: %s: %d events, p50 %.1f, p99 %.1f, p99.9 %.1f ms", name, len(times),
			milliseconds(percentile(times, 0.5)), milliseconds(percentile(times, 0.99)),
			milliseconds(percentile(times, 0.999)))
	}
	rep.atMost("latency", namePolling+", p50 ms", 20,
		rep.pick("latency", namePolling, func(f figure) float64 { return f.P50 }))
	rep.atMost("latency", namePolling+", p99 ms", 50,
		rep.pick("latency", namePolling, func(f figure) float64 { return f.P99 }))
	rep.atMost("latency", nameWoken+", p50 ms", 6,
		rep.pick("latency", nameWoken, func(f figure) float64 { return f.P50 }))
	return s.idleRelay(ctx, o, rep)
}

// moments of the events of a turn, after one epoch; those before warm are of the warm-up.
type moments struct {
	due, committed, arrived []time.Duration
	warm                    int
	figure                  figure
}

func (s *stack) latencyOnce(ctx context.Context, o options, name string, length time.Duration, payload [][]byte) (
	*moments, error,
) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox, queryVacuumOutbox); err != nil {
		return nil, err
	}
	wake, end, err := s.latencyRelay(ctx, o, name, topic)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = end() }()
	if err := s.awaitReader(ctx, name == nameWAL); err != nil {
		return nil, err
	}
	warm := int(latencyWarm.Seconds() * latencyRate)
	n := warm + int(length.Seconds()*latencyRate)
	p := &paced{
		topic: topic, payload: payload, epoch: time.Now(), n: n, wake: wake,
		committed: make([]time.Duration, n),
	}
	observed := newArrivals(p.epoch, n)
	following, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := make(chan error, 1)
	go func() { followed <- observed.follow(following, s.brokers, topic) }()
	before := serverCPU()
	if err := p.run(ctx, s.pg.URL()); err != nil {
		return nil, err
	}
	select {
	case <-observed.all:
	case err := <-followed:
		return nil, errors.Join(errors.New("the consumer ended"), err)
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("%d of %d events did not arrive", observed.left.Load(), n)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	used := serverCPU().minus(before)
	cancel()
	m := &moments{committed: p.committed, warm: warm}
	last := time.Duration(0)
	for i := range n {
		m.due, m.arrived = append(m.due, p.due(i)), append(m.arrived, time.Duration(observed.at[i].Load()))
		last = max(last, m.arrived[i])
	}
	per := 1e6 / float64(n)
	m.figure = figure{
		Events: n - warm, Seconds: (last - m.due[warm]).Seconds(), PostgresCPU: used.postgres * per,
		KafkaCPU: used.kafka * per,
	}
	m.figure.Rate = float64(m.figure.Events) / m.figure.Seconds
	a, err := end()
	m.figure.CPU, m.figure.PeakKiB = a.CPU*per, a.PeakKiB
	return m, errors.Join(err, <-followed)
}

// latencyRelay starts a relay in this process or another. end stops it; a second call does nothing.
func (s *stack) latencyRelay(ctx context.Context, o options, name, topic string) (wake func(),
	end func() (answer, error), err error,
) {
	j := job{
		URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Pumps: o.pumps, ClaimEvents: o.claimEvents,
		Compression: o.compression, WAL: name == nameWAL,
	}
	if name != nameWoken {
		relays, stop, err := s.background(1, j)
		if err != nil {
			return nil, nil, err
		}
		return func() {}, sync.OnceValues(func() (answer, error) { defer stop(); return relays[0].end() }), nil
	}
	pool, to, free, err := relayEnds(ctx, j, nil)
	if err != nil {
		return nil, nil, err
	}
	r, err := relay.New(pool, to, relay.Config{
		Schema: "public", Pumps: o.pumps, ClaimEvents: o.claimEvents,
		Logger: quiet(),
	})
	if err != nil {
		free()
		return nil, nil, err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	return r.Wake, sync.OnceValues(func() (answer, error) {
		cancel()
		defer free()
		return answer{}, <-ended
	}), nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
