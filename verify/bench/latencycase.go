package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

const (
	nameTable    = "relay that polls"
	nameEmbedded = "the writers' own relay, with Wake"
	nameWAL      = "relay that reads the WAL"
	nameDirect   = "by kafka-go after the COMMIT"

	latencyWriters = 16 // connections that append; two or three of them are at work at a time
	latencyWarm    = 1500 * time.Millisecond
)

// schedule is when transactions with one event each are due, and what each event holds.
type schedule struct {
	name    string
	rate    float64 // events a second
	payload func(i int) []byte
}

// schedules are a steady load, few events, and few events with a large one among 14.
func schedules() []schedule {
	small, medium, large := payloads(distinct), incompressible(16, 1000), incompressible(16, 100_000)
	of := func(all [][]byte) func(int) []byte { return func(i int) []byte { return all[i%len(all)] } }
	return []schedule{
		{"1000/s", 1000, of(small)},
		{"50/s", 50, of(small)},
		{"8/s of 1 kB, 0.6/s of 100 kB", 8.6, func(i int) []byte {
			if i%14 == 13 {
				return of(large)(i)
			}
			return of(medium)(i)
		}},
	}
}

// latencyCase measures the time from the moment at which a transaction with one event is due until a consumer has the
// event. A schedule is fixed in advance, so a stall counts for every event that was due in it.
func latencyCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("latency", fmt.Sprintf("Transactions with one event each; every event has its own key, and %d bytes "+
		"unless the row says otherwise. The latency is from the time at which an event is due until a waiting fetch "+
		"returns it. A turn takes %v", payloadSize, o.latency))
	if err := s.exec(ctx, queryLedgerTable); err != nil {
		return err
	}
	all := schedules()
	for turn := range o.repeats + 1 {
		for _, load := range all {
			for _, way := range []string{nameTable, nameEmbedded, nameWAL, nameDirect} {
				var f figure
				err := s.withWAL(ctx, way == nameWAL, func() (err error) {
					f, err = s.latencyOnce(ctx, o, load, way)
					return err
				})
				if err != nil {
					return fmt.Errorf("%s, %s: %w", load.name, way, err)
				}
				f.Case, f.Name, f.Turn = "latency", load.name+", "+way, turn
				rep.add(f)
			}
		}
	}
	steady := func(way string, get func(figure) float64) []float64 {
		return rep.pick("latency", all[0].name+", "+way, get)
	}
	p50, p99 := func(f figure) float64 { return f.P50 }, func(f figure) float64 { return f.P99 }
	rep.atMost("latency", nameTable+", p50, ms", 10, steady(nameTable, p50))
	rep.atMost("latency", nameTable+", p99, ms", 50, steady(nameTable, p99))
	rep.atMost("latency", nameEmbedded+", p50, ms", 4, steady(nameEmbedded, p50))
	rep.atMost("latency", nameWAL+", p50, ms", 2, steady(nameWAL, p50))
	return nil
}

func (s *stack) latencyOnce(ctx context.Context, o options, load schedule, way string) (f figure, err error) {
	topic, drop, err := s.topic(ctx)
	if err != nil {
		return f, err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox, queryVacuumOutbox); err != nil {
		return f, err
	}
	warm := int(latencyWarm.Seconds() * load.rate)
	p := &paced{topic: topic, schedule: load, n: warm + int(o.latency.Seconds()*load.rate)}
	end, err := s.carry(ctx, o, way, p)
	if err != nil {
		return f, err
	}
	defer func() {
		ended, endErr := end()
		f.PeakKiB, f.CPU = ended.PeakKiB, ended.Client*1e6/float64(p.n)
		err = errors.Join(err, endErr)
	}()
	p.epoch = time.Now()
	observed := newArrivals(p.epoch, p.n)
	following, cancel := context.WithCancel(ctx)
	followed := make(chan error, 1)
	go func() {
		defer close(followed) // it may be received from twice
		followed <- observed.follow(following, s.brokers, topic)
	}()
	defer func() {
		cancel()
		err = errors.Join(err, <-followed)
	}()
	before := serverCPU()
	if err := p.run(ctx, s.pg.URL()); err != nil {
		return f, err
	}
	select {
	case <-observed.all:
	case err := <-followed:
		return f, errors.Join(errors.New("the consumer ended"), err)
	case <-time.After(time.Minute):
		return f, fmt.Errorf("%d of %d events did not arrive", observed.left.Load(), p.n)
	case <-ctx.Done():
		return f, ctx.Err()
	}
	used := serverCPU().minus(before)
	times, last := observed.latencies(p.due, warm)
	seconds := (last - p.due(warm)).Seconds()
	per := 1e6 / float64(p.n)
	return figure{
		Events: p.n - warm, Seconds: seconds, Rate: float64(p.n-warm) / seconds,
		PostgresCPU: used.postgres * per, KafkaCPU: used.kafka * per,
		P50: milliseconds(percentile(times, 0.5)), P99: milliseconds(percentile(times, 0.99)),
	}, nil
}

// carry starts what brings p's events to Kafka. end stops it, and returns what a process of its own has used.
func (s *stack) carry(ctx context.Context, o options, way string, p *paced) (end func() (answer, error), err error) {
	switch way {
	case nameEmbedded:
		return s.embed(ctx, o, p)
	case nameDirect:
		w := &kafka.Writer{
			Addr: kafka.TCP(s.brokers...), Topic: p.topic, Balancer: &kafka.Murmur2Balancer{},
			RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond, Compression: kafka.Snappy,
		}
		p.direct = w
		return func() (answer, error) { return answer{}, w.Close() }, nil
	}
	relays, stop, err := s.background(1, job{Topic: p.topic, Pumps: o.pumps, WAL: way == nameWAL})
	if err != nil {
		return nil, err
	}
	if err := s.awaitRelays(ctx, 1, way == nameWAL); err != nil {
		stop()
		return nil, err
	}
	return func() (answer, error) {
		defer stop()
		return relays[0].end()
	}, nil
}

// embed runs a relay in this process, which the writers wake.
func (s *stack) embed(ctx context.Context, o options, p *paced) (end func() (answer, error), err error) {
	to, err := publisher.NewKafka(s.brokers, publisher.Config{Logger: quiet()})
	if err != nil {
		return nil, err
	}
	r, err := relay.New(s.db, to, relay.Config{Schema: "public", Pumps: o.pumps, Logger: quiet()})
	if err != nil {
		return nil, errors.Join(err, to.Close())
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	end = func() (answer, error) {
		cancel()
		return answer{}, errors.Join(<-ended, to.Close())
	}
	p.committed = r.Wake
	if err := s.awaitRelays(ctx, 1, false); err != nil {
		_, endErr := end()
		return nil, errors.Join(err, endErr)
	}
	return end, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
