package main

import (
	"context"
	"fmt"
)

// Other Kafka clients than that of package publisher.
const (
	clientFranz      = "franz-go"
	clientFranzPlain = "franz-go, not idempotent"
)

// clientsCase compares the relay, and Publish without a database, over kafka-go's transport as in package publisher and
// over franz-go; then the same at a rate that does not fill batches.
func clientsCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("clients", fmt.Sprintf("%d events of %d bytes, %d keys; then %d transactions a second with one event each",
		o.events, payloadSize, keys, latencyRate))
	payload := payloads(distinct)
	kinds := []struct {
		name string
		once func(o options, turn int) (figure, error)
	}{
		{"drain", func(o options, _ int) (figure, error) { return s.drainOnce(ctx, o, payload, false) }},
		{"Publish", func(o options, _ int) (figure, error) { return s.publishOnce(ctx, o) }},
		{"paced", func(o options, turn int) (figure, error) {
			m, err := s.latencyOnce(ctx, o, namePolling, o.live.latency, payload)
			if err != nil {
				return figure{}, err
			}
			times := latencies(m.due, m.arrived, m.warm)
			m.figure.P50, m.figure.P99 = milliseconds(percentile(times, 0.5)), milliseconds(percentile(times, 0.99))
			return m.figure, nil
		}},
	}
	for turn := range o.repeats + 1 {
		for _, kind := range kinds {
			for _, client := range []string{"", clientFranz, clientFranzPlain} {
				one := o
				one.client = client
				f, err := kind.once(one, turn)
				if err != nil {
					return fmt.Errorf("%s: %w", clientName(kind.name, client), err)
				}
				f.Case, f.Name, f.Turn = "clients", clientName(kind.name, client), turn
				rep.add(f)
			}
		}
	}
	for _, kind := range kinds[:2] {
		for _, client := range []string{clientFranz, clientFranzPlain} {
			rep.ratio("clients", clientName(kind.name, client), clientName(kind.name, ""), 1.3)
		}
	}
	return nil
}

func clientName(kind, client string) string {
	if client == "" {
		client = "publisher"
	}
	return kind + ": " + client
}
