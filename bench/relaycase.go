package main

import (
	"context"
	"fmt"
)

// The names of the measurements.
const (
	nameRelay    = "relay drain"
	nameProducer = "ProducerPerformance"
	namePublish  = "plain Publish"
)

// relayCase compares a relay that drains a backlog with Kafka's load generator, and with the publisher without a
// database. They take turns, so that a busy minute of the machine affects all of them.
func relayCase(ctx context.Context, s *stack, o options, rep *report) error {
	payload := payloads(distinct)
	file, err := s.payloadFile(payload)
	if err != nil {
		return err
	}
	rep.note("relay", fmt.Sprintf("%d events of %d bytes, %d keys; ProducerPerformance: the same payloads without "+
		"keys and headers, acks=all %s, %v",
		o.events, payloadSize, keys, o.producer, javaOptions))
	for turn := range o.repeats + 1 {
		for _, one := range []func() (figure, error){
			func() (figure, error) { return s.drainOnce(ctx, o, payload, turn == o.repeats) },
			func() (figure, error) { return s.producerOnce(ctx, o, file) },
			func() (figure, error) { return s.publishOnce(ctx, o) },
		} {
			f, err := one()
			if err != nil {
				return err
			}
			f.Case, f.Turn = "relay", turn
			rep.add(f)
		}
	}
	rep.ratio("relay", nameRelay, nameProducer, 1.5)
	rep.ratio("relay", nameRelay, namePublish, 0.4)
	return nil
}

func (s *stack) drainOnce(ctx context.Context, o options, payload [][]byte, last bool) (figure, error) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return figure{}, err
	}
	defer drop()
	if err := s.fill(ctx, topic, o.events, payload); err != nil {
		return figure{}, err
	}
	j := job{
		Kind: "relay", URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Events: o.events, Pumps: o.pumps,
		ClaimEvents: o.claimEvents, Compression: o.compression,
	}
	if last {
		j.Profile = o.profile
	}
	return s.measured(ctx, nameRelay, j)
}

func (s *stack) publishOnce(ctx context.Context, o options) (figure, error) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return figure{}, err
	}
	defer drop()
	return s.measured(ctx, namePublish, job{
		Kind: "publish", Brokers: s.brokers, Topic: topic, Events: o.events,
		Pumps: o.pumps, Compression: o.compression,
	})
}

// measured runs a child and adds the resource use of the servers.
func (s *stack) measured(ctx context.Context, name string, j job) (figure, error) {
	f, _, err := s.measuredAnswer(ctx, name, j)
	return f, err
}

// measuredAnswer is measured with the child's answer.
func (s *stack) measuredAnswer(ctx context.Context, name string, j job) (figure, answer, error) {
	wal, err := s.wal(ctx)
	if err != nil {
		return figure{}, answer{}, err
	}
	before := serverCPU()
	a, err := child(ctx, j)
	if err != nil {
		return figure{}, answer{}, err
	}
	used, n := serverCPU().minus(before), float64(j.Events)
	f := figure{
		Name: name, Events: j.Events, Seconds: a.Seconds, Rate: n / a.Seconds, PeakKiB: a.PeakKiB,
		CPU: a.CPU * 1e6 / n, PostgresCPU: used.postgres * 1e6 / n, KafkaCPU: used.kafka * 1e6 / n,
		WireBytes: float64(a.SentBytes) / n,
	}
	if j.Kind == "publish" {
		f.PostgresCPU = 0
		return f, a, nil
	}
	after, err := s.wal(ctx)
	if err != nil {
		return figure{}, answer{}, err
	}
	f.WALBytes, f.Claims = float64(after-wal)/n, a.Claims
	f.Claim, f.Publish, f.Settle = a.Claim, a.Publish, a.Settle
	if j.Kind != "relay" {
		return f, a, nil // a peer's tables are its own
	}
	return f, a, s.left(ctx)
}

func (s *stack) producerOnce(ctx context.Context, o options, file string) (figure, error) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return figure{}, err
	}
	defer drop()
	before := serverCPU()
	rate, cpu, err := s.producerPerformance(ctx, topic, file, o.events, o.producer)
	n := float64(o.events)
	return figure{
		Name: nameProducer, Events: o.events, Seconds: n / max(rate, 1), Rate: rate, CPU: cpu * 1e6 / n,
		KafkaCPU: serverCPU().minus(before).kafka * 1e6 / n,
	}, err
}
