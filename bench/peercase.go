package main

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// peerLimit ends the case if a peer hangs.
const peerLimit = 5 * time.Minute

// peer is a program that publishes events from Postgres to Kafka. Slow ones get fewer events than the relay.
type peer struct {
	name string
	goal float64 // the relay should be so many times faster
	once func(ctx context.Context, turn int) (figure, error)
}

// peersCase compares the relay with its alternatives, in turns, with the same payloads, broker and number of
// partitions. Each drains a backlog. A peer that is not available is reported and skipped.
func peersCase(ctx context.Context, s *stack, o options, rep *report) error {
	payload := payloads(distinct)
	peers := []peer{{name: nameRelay, once: func(ctx context.Context, turn int) (figure, error) {
		return s.drainOnce(ctx, o, payload, turn == o.repeats)
	}}}
	connect, err := s.startConnect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rep.printf("Debezium is left out: %v", err)
	} else {
		defer connect.Close()
		peers = append(peers, peer{nameDebezium, 10, func(ctx context.Context, turn int) (figure, error) {
			return s.debeziumOnce(ctx, connect, debeziumRun{
				nameDebezium, fmt.Sprintf("debezium_%d", turn),
				o.debeziumEvents,
			}, payload, rep)
		}}, peer{nameDebeziumFresh, 10, func(ctx context.Context, turn int) (figure, error) {
			fresh, err := s.startConnect(ctx)
			if err != nil {
				return figure{}, err
			}
			defer fresh.Close()
			return s.debeziumOnce(ctx, fresh, debeziumRun{
				nameDebeziumFresh, fmt.Sprintf("debezium_fresh_%d", turn),
				o.debeziumEvents,
			}, payload, rep)
		}})
	}
	rep.note("peers", fmt.Sprintf("payloads of %d bytes, %d keys; relay: %d events; Debezium: %d, %s",
		payloadSize, keys, o.events, o.debeziumEvents, debeziumSettings))
	for turn := range o.repeats + 1 {
		for _, p := range peers {
			limited, cancel := context.WithTimeout(ctx, peerLimit)
			f, err := p.once(limited, turn)
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			f.Case, f.Turn = "peers", turn
			rep.add(f)
		}
	}
	for _, p := range peers[1:] {
		rep.ratio("peers", nameRelay, p.name, p.goal)
	}
	return nil
}

// allArrived returns an error if a topic has fewer records than there were events, and reports if it has more.
func (s *stack) allArrived(ctx context.Context, rep *report, name, topic string, n int) error {
	got, err := s.arrived(ctx, topic)
	switch {
	case err != nil:
		return err
	case got < n:
		return fmt.Errorf("%d records arrived of %d events", got, n)
	case got > n:
		rep.printf("  %s: %d records for %d events", name, got, n)
	}
	return nil
}

// arrived counts the records of a topic.
func (s *stack) arrived(ctx context.Context, topic string) (n int, err error) {
	var ends []kafka.OffsetRequest
	for p := range partitions {
		ends = append(ends, kafka.LastOffsetOf(p))
	}
	res, err := s.kafka.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: ends,
	}})
	if err != nil {
		return 0, fmt.Errorf("list the offsets of %s: %w", topic, err)
	}
	for _, p := range res.Topics[topic] {
		if p.Error != nil {
			return 0, fmt.Errorf("list the offsets of %s: %w", topic, p.Error)
		}
		n += int(p.LastOffset)
	}
	return n, nil
}
