package main

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// brokersCase is the relay case with three brokers on this machine, two of which must have a record before its ack.
func brokersCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("brokers", fmt.Sprintf("three brokers, replication factor 3, min.insync.replicas 2; %d events of %d "+
		"bytes, %d keys; ProducerPerformance: acks=all %s; two repeats",
		o.events, payloadSize, keys, o.producer))
	libs, err := kafkatest.Libs()
	if err != nil {
		return err
	}
	cluster, err := kafkatest.Standalone(3)
	if err != nil {
		return err
	}
	defer cluster.Close()
	three := *s
	three.libs, three.brokers, three.replicas = libs, cluster.Brokers(), 3
	three.kafka = &kafka.Client{Addr: kafka.TCP(three.brokers...), Timeout: time.Minute}
	payload := payloads(distinct)
	file, err := three.payloadFile(payload)
	if err != nil {
		return err
	}
	for turn := range min(o.repeats, 2) + 1 {
		for _, one := range []func() (figure, error){
			func() (figure, error) { return three.drainOnce(ctx, o, payload, turn == min(o.repeats, 2)) },
			func() (figure, error) { return three.producerOnce(ctx, o, file) },
			func() (figure, error) { return three.publishOnce(ctx, o) },
		} {
			f, err := one()
			if err != nil {
				return err
			}
			f.Case, f.Turn = "brokers", turn
			rep.add(f)
		}
	}
	rep.ratio("brokers", nameRelay, nameProducer, 1)
	rep.ratio("brokers", nameRelay, namePublish, 0.4)
	rep.peaks("brokers", "relay", nameRelay)
	return nil
}
