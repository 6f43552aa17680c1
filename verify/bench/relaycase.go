package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/segmentio/kafka-go"
)

const (
	nameRelay = "relay drain"
	nameLarge = "relay drain, events of 1 MiB"
	mebi      = 1 << 20
)

// relayCase drains a backlog of small events, and one of large events, whose number the memory may not depend on.
func relayCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("relay", fmt.Sprintf("%d events of %d bytes with %d keys, and %d of 1 MiB. The time is from the start of "+
		"the relay to the last settle, joining and first connections included", o.events, payloadSize, keys, o.large))
	small, large := payloads(distinct), incompressible(16, mebi)
	for turn := range o.repeats + 1 {
		f, err := s.drainOnce(ctx, o, o.events, small)
		if err != nil {
			return err
		}
		f.Case, f.Name, f.Turn = "relay", nameRelay, turn
		rep.add(f)
	}
	f, err := s.drainOnce(ctx, o, o.large, large)
	if err != nil {
		return fmt.Errorf("%s: %w", nameLarge, err)
	}
	f.Case, f.Name, f.Turn = "relay", nameLarge, 1
	rep.add(f)
	for _, name := range []string{nameRelay, nameLarge} {
		rep.atMost("relay", name+", peak, MiB", 200,
			rep.pick("relay", name, func(f figure) float64 { return float64(f.PeakKiB) / 1024 }))
	}
	return nil
}

// drainOnce fills the outbox and drains it by a relay in a process of its own.
func (s *stack) drainOnce(ctx context.Context, o options, events int, payload [][]byte) (f figure, err error) {
	var settings []kafka.ConfigEntry
	if size := len(payload[0]); size >= mebi {
		settings = []kafka.ConfigEntry{{ConfigName: "max.message.bytes", ConfigValue: strconv.Itoa(4 * size)}}
	}
	topic, drop, err := s.topic(ctx, settings...)
	if err != nil {
		return f, err
	}
	defer drop()
	if err := s.fill(ctx, topic, events, payload); err != nil {
		return f, err
	}
	a, err := child(ctx, job{
		URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Relay: true, Events: events, Cold: true, Pumps: o.pumps,
	})
	if err != nil {
		return f, err
	}
	n := float64(events)
	return figure{
		Events: events, Seconds: a.Seconds, Rate: n / a.Seconds, PeakKiB: a.PeakKiB, CPU: a.Client * 1e6 / n,
		Allocations: a.Allocations / n,
		PostgresCPU: a.Postgres * 1e6 / n, KafkaCPU: a.Kafka * 1e6 / n, WALBytes: a.WAL / n,
	}, s.left(ctx)
}

// incompressible returns payloads that neither a codec nor TOAST can compress.
func incompressible(n, size int) [][]byte {
	rng := rand.NewChaCha8([32]byte{1})
	out := make([][]byte, n)
	for i := range out {
		out[i] = make([]byte, size)
		_, _ = rng.Read(out[i]) // never fails
	}
	return out
}

// records returns the number of records in a topic, of those partitions that have a leader.
func (s *stack) records(ctx context.Context, topic string) (n int, err error) {
	var ask []kafka.OffsetRequest
	for p := range partitions {
		ask = append(ask, kafka.LastOffsetOf(p))
	}
	res, err := s.kafka.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: ask,
	}})
	if err != nil {
		return 0, fmt.Errorf("list the offsets of %s: %w", topic, err)
	}
	for _, p := range res.Topics[topic] {
		if code := kafka.Error(0); errors.As(p.Error, &code) && code.Temporary() {
			continue // the topic is new
		}
		if p.Error != nil {
			return 0, fmt.Errorf("list the offsets of %s: %w", topic, p.Error)
		}
		n += int(p.LastOffset)
	}
	return n, nil
}
