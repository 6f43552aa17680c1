package main

import (
	"context"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// connectOptions are those of Kafka's own connect-standalone.sh.
var connectOptions = []string{
	"-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
	"-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
}

// connectWorker are the settings of its producers.
var connectWorker = []string{
	"producer.acks=all",
	"producer.linger.ms=5",
	"producer.batch.size=262144",
	"producer.buffer.memory=67108864",
	"producer.compression.type=snappy",
}

// startConnect starts Kafka Connect for several turns, whose connectors are managed over REST.
func (s *stack) startConnect(ctx context.Context) (*kafkatest.Connect, error) {
	return kafkatest.StartConnect(ctx, kafkatest.ConnectConfig{
		Brokers: s.brokers, Java: connectOptions,
		Worker: connectWorker,
	})
}
