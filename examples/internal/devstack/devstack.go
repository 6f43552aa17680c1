// Package devstack runs a Postgres and a Kafka on a machine that has neither, for the demo: a real Postgres, fetched
// once and started as a child process, and an imitation of Kafka inside this process. Nothing of it is meant for data
// that anybody wants to keep.
package devstack

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Kafka is a broker inside this process, at a free port of 127.0.0.1. It keeps everything in memory.
type Kafka struct{ cluster *kfake.Cluster }

// StartKafka starts a broker.
func StartKafka() (*Kafka, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, fmt.Errorf("starting the in-process Kafka: %w", err)
	}
	return &Kafka{cluster}, nil
}

// Brokers are its addresses, host:port.
func (k *Kafka) Brokers() []string { return k.cluster.ListenAddrs() }

// Close ends it and every connection to it.
func (k *Kafka) Close() { k.cluster.Close() }
