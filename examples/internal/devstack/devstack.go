// Package devstack runs a Postgres and a Kafka for the demo on a machine that has neither: a real Postgres, downloaded
// once and started as a child process, and an imitation of Kafka in this process. It is not for data to keep.
package devstack

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Kafka is a broker in this process, on a free port of 127.0.0.1. It keeps all data in memory.
type Kafka struct{ cluster *kfake.Cluster }

// StartKafka starts a broker.
func StartKafka() (*Kafka, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, fmt.Errorf("starting the in-process Kafka: %w", err)
	}
	return &Kafka{cluster}, nil
}

// Brokers returns its addresses, host:port.
func (k *Kafka) Brokers() []string { return k.cluster.ListenAddrs() }

// Close stops the broker and closes its connections.
func (k *Kafka) Close() { k.cluster.Close() }
